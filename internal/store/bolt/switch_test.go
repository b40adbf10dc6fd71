package bolt

import (
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
)

// A kill leads out of an epoch that is damaged.
func TestKillOnADamagedEpoch(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	entry := killswitch.Entry{ID: "k", Scope: killswitch.Scope{Kind: killswitch.All}}
	for _, c := range []struct{ damaged, want uint64 }{
		{killswitch.EpochCeiling, 12}, {1<<64 - 1, 12}, {killswitch.EpochCeiling - 1, killswitch.EpochCeiling},
	} {
		err := s.update(t.Context(), func(tx *bbolt.Tx) error { return putEpoch(tx, c.damaged) })
		if err != nil {
			t.Fatal(err)
		}
		e, _, err := s.Kill(t.Context(), entry, 12, audit.Entry{Action: "kill"})
		if err != nil || e.Epoch != c.want || epochOf(t, s) != c.want {
			t.Errorf("after epoch %d: %d, %v; the store is at %d", c.damaged, e.Epoch, err, epochOf(t, s))
		}
	}
}

// A replica that has ended serves no schedule, and holds up none.
func TestServingWithoutTheGone(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	for _, b := range []killswitch.Beat{
		{Replica: "a", Revisions: map[string]uint64{testIssuer: 3}}, {Replica: "b"}, {Replica: "c", Epoch: killswitch.Gone},
	} {
		if _, err := s.Beat(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	confirmed, missing, err := s.Serving(t.Context(), testIssuer, 3)
	if err != nil || len(confirmed) != 1 || len(missing) != 1 || missing[0] != "b" {
		t.Fatalf("confirmed %v, missing %v, %v", confirmed, missing, err)
	}
}
