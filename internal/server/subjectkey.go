package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/signer"
)

// subjectChecked is what the subject key is recognised by. No subject is derived from
// it: those messages begin with a length.
const subjectChecked = "pact subject key"

// subjectCheck is a value that tells custody's subject key from others, and does not
// give it away.
func subjectCheck(ctx context.Context, k custody.Keyring) (string, error) {
	mac, err := k.MAC(ctx, []byte(subjectChecked))
	if err != nil {
		return "", fmt.Errorf("the subject key: %w", err)
	}
	sum := sha256.Sum256(mac)
	return hex.EncodeToString(sum[:16]), nil
}

// subjectKey looks whether custody's subject key is the one that the deployment's
// record was made with. With another one every caller that enrols, and every new
// credential, would be somebody else to Providers, for ever; those that are recorded
// keep their subjects.
type subjectKey struct {
	keyring custody.Keyring
	keeper  *keeper
	log     *slog.Logger

	mu       sync.Mutex
	compared time.Time // zero: not yet
	doubt    bool      // it may be another one by now
	wrong    error     // why it must not be used; nil once compared
}

var errNotCompared = errors.New("the subject key has not been compared with the deployment's record yet")

// usable says why no subject may be derived.
func (s *subjectKey) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.compared.IsZero() && s.wrong == nil {
		return fmt.Errorf("%w: %w", custody.ErrUnavailable, errNotCompared)
	}
	return s.wrong
}

// doubtful makes it due: custody was away, and may be from a backup.
func (s *subjectKey) doubtful() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt = true
}

// due says whether it was not found well within the last while.
func (s *subjectKey) due(every time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubt || s.wrong != nil || time.Since(s.compared) >= every
}

// compare asks custody. A record that is from before it was kept gets the value. With
// an error it is as it was.
func (s *subjectKey) compare(ctx context.Context) error {
	have, err := subjectCheck(ctx, s.keyring)
	if err == nil {
		var d deployment
		d, err = s.keeper.change(ctx, func(d *deployment) error {
			if d.SubjectCheck == "" {
				d.SubjectCheck = have
			}
			return nil
		})
		if err == nil {
			s.note(ctx, d.SubjectCheck == have)
			return nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.compared.IsZero() {
		s.wrong = fmt.Errorf("%w: %w: %w", custody.ErrUnavailable, errNotCompared, err)
	}
	return err
}

func (s *subjectKey) note(ctx context.Context, right bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, was := s.compared.IsZero(), s.wrong
	s.compared, s.wrong, s.doubt = time.Now(), nil, false
	if !right {
		s.wrong = signer.ErrOtherSubjectKey
	}
	switch {
	case !right && !errors.Is(was, signer.ErrOtherSubjectKey):
		s.log.ErrorContext(ctx, "custody's subject key is another one than the deployment was made with: nobody can enrol and no credential can be made, for their subjects would be wrong; restore the key from its backup")
	case right && !first && was != nil:
		s.log.InfoContext(ctx, "custody's subject key is the right one again")
	}
}

// rightKeyring is custody that signs, and derives subjects, only while it is known to be
// the deployment's, and the latter with the right key only.
type rightKeyring struct {
	custody.Keyring
	keeper  *keeper
	subject *subjectKey
}

// Sign implements custody.Keyring.
func (k rightKeyring) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	if err := k.keeper.usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", custody.ErrUnavailable, err)
	}
	return k.Keyring.Sign(ctx, name, digest)
}

// MAC implements custody.Keyring.
func (k rightKeyring) MAC(ctx context.Context, message []byte) ([]byte, error) {
	if err := k.keeper.usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", custody.ErrUnavailable, err)
	}
	if err := k.subject.usable(); err != nil {
		return nil, err
	}
	return k.Keyring.MAC(ctx, message)
}
