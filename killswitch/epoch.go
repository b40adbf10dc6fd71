package killswitch

import (
	"errors"
	"fmt"
	"math"
)

// Epochs grow by one, or to one above what custody knows. One that is far above is
// damage: believed, it would leave no room above it, and nothing could be thrown any
// more.
const (
	// MaxEpoch is the highest epoch that is taken from a store or a file at once. What
	// this replica or custody knows may be higher, and is followed step by step.
	MaxEpoch = 1 << 40
	// EpochCeiling is where a store's epoch does not count any more, see NextEpoch.
	EpochCeiling = 2 * MaxEpoch
	// epochStep is how far an epoch above MaxEpoch may be ahead of what is known.
	epochStep = 1 << 20
	// epochLimit is above every epoch that is believed or recorded.
	epochLimit = EpochCeiling + epochStep
)

// Gone is the epoch in the last beat of a replica that has ended: it enforces every
// state, for it never signs again.
const Gone = math.MaxUint64

// ErrDamaged: a state, or a grant, holds an epoch that no deployment reaches.
var ErrDamaged = errors.New("killswitch: the switch's state is damaged")

// NextEpoch is the epoch of the next act in a store whose epoch is current. One that is
// damaged does not count, so that an act leads out of it.
func NextEpoch(current, floor uint64) uint64 {
	if current >= EpochCeiling {
		current = 0
	}
	return max(current+1, floor)
}

// Check returns an error that wraps ErrDamaged if a state that comes from elsewhere,
// such as a file, holds an epoch above MaxEpoch.
func (s State) Check() error { return s.believable(0) }

// believable says whether a state is one that may follow the epoch known.
func (s State) believable(known uint64) error {
	return believable(s.highest(), known)
}

func believable(epoch, known uint64) error {
	if epoch <= MaxEpoch || epoch < epochLimit && epoch <= known+epochStep {
		return nil
	}
	return fmt.Errorf("%w: it is of epoch %d", ErrDamaged, epoch)
}

// highest is the highest epoch in s.
func (s State) highest() uint64 { return max(s.Epoch, s.highestAct()) }

// highestAct is the highest epoch of an entry or a resume in s.
func (s State) highestAct() (epoch uint64) {
	for _, e := range s.Entries {
		epoch = max(epoch, e.Epoch)
	}
	for _, r := range s.Resumes {
		epoch = max(epoch, r.Epoch)
	}
	return epoch
}
