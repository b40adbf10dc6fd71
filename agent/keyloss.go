package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// KeyLoss says what a profile lost with its key. The counts are of the whole
// profile.
type KeyLoss struct {
	At         time.Time `json:"at"`
	Identities int       `json:"identities"` // kept, to be enrolled again (signer_key_unusable)
	Grants     int       `json:"grants"`     // ended as invalid, secret_missing (GR-6)
	SignIns    int       `json:"signIns"`    // ended as failed, secret_missing (RS-4)
	Receipts   int       `json:"receipts"`   // listed still, never to be verified again
}

// IssueSecretMissing is the issue of a receipt whose signed form was lost with
// the profile's key: its verdict stays and cannot be checked again.
const IssueSecretMissing = "secret_missing"

// Notices are what the owner must be told once and that opening this agent
// brought: a surface shows them before anything else. No secrets.
func (a *Agent) Notices() []string { return a.notices }

// loadSettings reads or makes the profile's settings, and its key with them. A key
// that is gone is replaced, and the loss recorded; one that cannot be reached is an
// error, and nothing changes.
func (a *Agent) loadSettings() error {
	for {
		err := a.openSettings()
		if !errors.Is(err, ErrConflict) { // else another process was first: look again
			return err
		}
	}
}

func (a *Agent) openSettings() error {
	var s *settings
	err := a.store.View(context.Background(), func(tx Tx) (err error) {
		s, err = get[settings](tx, "", settingsID)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return a.newProfile()
	}
	if err != nil {
		return err
	}
	switch {
	case s.KeySource == KeyKeyring && a.cfg.Key == KeyFile:
		return fmt.Errorf("%w: it is in the keyring, whose use is switched off", ErrProfileKey)
	case s.KeySource != KeyKeyring && a.cfg.Key == KeyKeyring:
		return fmt.Errorf("%w: it is in a file, and only a keyring is to be used: allow the file, or start a new profile", ErrProfileKey)
	}
	master, err := readKey(a.cfg.Dir, s)
	switch {
	case errors.Is(err, errKeyAbsent):
		return a.replaceKey(s, nil)
	case err != nil:
		return err
	}
	b, err := newBox(master)
	if err != nil {
		return err
	}
	if !b.fits(s) {
		return a.replaceKey(s, b)
	}
	a.box, a.settings = b, *s
	return nil
}

// newProfile makes settings and a key. Errors wrap ErrConflict if another process
// was first.
func (a *Agent) newProfile() error {
	s := &settings{Head: Head{ID: settingsID, Created: a.now()}}
	b, undo, err := a.newKeyFor(s, a.cfg.Key)
	if err != nil {
		return err
	}
	err = b.check(s)
	if err == nil {
		err = a.store.Update(context.Background(), func(tx Tx) error { return put(tx, s) })
	}
	if err != nil {
		undo()
		return err
	}
	a.box, a.settings = b, *s
	return nil
}

// newKeyFor makes a key and says in the settings where it is. Each key in the
// keyring has an account of its own, so that of two processes neither overwrites
// the other's; undo takes the loser's away.
func (a *Agent) newKeyFor(s *settings, source KeySource) (b *box, undo func(), err error) {
	if source != KeyFile {
		key, account := newKey(), newID("profile")
		err := keyringSet(account, key)
		if err == nil {
			s.KeySource, s.KeyAccount = KeyKeyring, account
			b, err := newBox(key)
			return b, func() { keyringDelete(account) }, err
		}
		if source == KeyKeyring {
			return nil, nil, err
		}
		// KeyAuto: no keyring, or none that works.
	}
	s.KeySource, s.KeyAccount = KeyFile, ""
	path := filepath.Join(a.cfg.Dir, keyFile)
	key, err := readKeyFile(path) // another process may be as far, or its settings lost
	if errors.Is(err, errKeyAbsent) {
		key, err = makeKeyFile(path)
	}
	if err != nil {
		return nil, nil, err
	}
	b, err = newBox(key)
	return b, func() {}, err
}

// replaceKey goes on with another key, other's or a new one, and records what is
// lost. Errors wrap ErrConflict if the settings changed since they were seen: then
// another process may have done it.
func (a *Agent) replaceKey(seen *settings, other *box) error {
	s, b, undo := *seen, other, func() {}
	why := "is another one than before"
	if other == nil {
		why = "is gone"
		source := KeyFile
		if seen.KeySource == KeyKeyring {
			source = KeyKeyring // never down to a file
		}
		var err error
		if b, undo, err = a.newKeyFor(&s, source); err != nil {
			return err
		}
	}
	var loss *KeyLoss
	err := b.check(&s)
	if err == nil {
		err = a.store.Update(context.Background(), func(tx Tx) (err error) {
			if loss, err = a.loseSecrets(tx, a.now().UTC()); err != nil {
				return err
			}
			if loss.some() {
				s.KeyLost = loss
			}
			return put(tx, &s)
		})
	}
	if err != nil {
		undo()
		return err
	}
	a.box, a.settings = b, s
	if loss.some() {
		a.notices = append(a.notices, fmt.Sprintf("The profile's key %s, and what it sealed is lost: %s. Enrol with the signer again: its address is kept, the device key or credential is not.", why, loss.text()))
	}
	return nil
}

// some reports whether there was anything to lose.
func (l *KeyLoss) some() bool { return l.Identities+l.Grants+l.SignIns+l.Receipts > 0 }

func (l *KeyLoss) text() string {
	return fmt.Sprintf("permissions ended: %d, sign-ins ended: %d, receipts that cannot be verified again: %d", l.Grants, l.SignIns, l.Receipts)
}

// loseSecrets ends all that hung on the secrets that can no longer be opened, of
// every principal, so that each says why: grants and sign-ins end, and
// conversations that ran as an account, for accounts are no longer recognized
// (GR-1). Receipts stay. The signer configuration stays too: the agent says
// signer_key_unusable until it is enrolled again.
func (a *Agent) loseSecrets(tx Tx, now time.Time) (*KeyLoss, error) {
	loss := &KeyLoss{At: now}
	identities, err := find[identity](tx, Query{AllPrincipals: true})
	if err != nil {
		return nil, err
	}
	loss.Identities = len(identities)
	grants, err := find[grant](tx, Query{AllPrincipals: true, States: []string{grantActive}})
	if err != nil {
		return nil, err
	}
	for _, g := range grants {
		state, reason := grantInvalid, ReasonSecretMissing
		if g.stateAt(now) == grantActive {
			loss.Grants++
		} else {
			state, reason = grantExpired, ReasonLapsed
		}
		if err := endGrant(tx, g, state, reason, now); err != nil {
			return nil, err
		}
	}
	pending, err := find[authorization](tx, Query{AllPrincipals: true, States: []string{authorizationPending}})
	if err != nil {
		return nil, err
	}
	for _, z := range pending {
		state, reason := authorizationFailed, ReasonSecretMissing
		if now.Before(z.Deadline) {
			loss.SignIns++
		} else {
			state, reason = authorizationExpired, ReasonConsentExpired
		}
		if err := a.settle(tx, z, state, reason); err != nil {
			return nil, err
		}
	}
	conversations, err := find[conversation](tx, Query{AllPrincipals: true})
	if err != nil {
		return nil, err
	}
	for _, c := range conversations {
		if c.Account == "" {
			continue
		}
		c.Account = ""
		if c.State != conversationClosed {
			c.State, c.Reason, c.Updated = conversationClosed, ReasonSecretMissing, now
		}
		if err := put(tx, c); err != nil {
			return nil, err
		}
	}
	receipts, err := find[receipt](tx, Query{AllPrincipals: true})
	if err != nil {
		return nil, err
	}
	for _, r := range receipts {
		if r.unreadable() {
			continue // by an earlier loss
		}
		loss.Receipts++
		r.Issues = append(r.Issues, IssueSecretMissing)
		if err := put(tx, r); err != nil {
			return nil, err
		}
	}
	return loss, nil
}
