package sandbox

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// Account is a user who can sign in with the brands.
type Account struct {
	// ID is the user's id at the brands: the sub of delegation tokens.
	ID string
	// Name greets the user on the pages.
	Name string
	person.Login
}

// account is an Account as kept.
type account struct {
	id, name, email string
	password        passwordHash
}

// passwordHash is what is kept of a password: Argon2id with a salt (RFC 9106).
type passwordHash struct {
	memory    uint32 // KiB
	salt, key [32]byte
}

const (
	passwordMemory = 19 << 10 // KiB
	passwordPasses = 2
	minPassword    = 8   // bytes
	maxPassword    = 256 // bytes
)

// newPasswordHash has a salt and a key that is no password's yet.
func newPasswordHash(memory uint32) passwordHash {
	h := passwordHash{memory: memory}
	_, _ = rand.Read(h.salt[:]) // never fails (crypto/rand)
	_, _ = rand.Read(h.key[:])
	return h
}

func (h *passwordHash) derive(password string) []byte {
	return argon2.IDKey([]byte(password), h.salt[:], passwordPasses, h.memory, 1, uint32(len(h.key)))
}

// fits compares in constant time.
func (h *passwordHash) fits(password string) bool {
	return subtle.ConstantTimeCompare(h.derive(password), h.key[:]) == 1
}

// drawPassword makes a password that can be typed: 74 random bits.
func drawPassword() string {
	const letters = "abcdefghjkmnpqrstuvwxyz23456789"
	return randomLetters(letters, 5) + "-" + randomLetters(letters, 5) + "-" + randomLetters(letters, 5)
}

// hashPassword keeps a password: of 8 to maxPassword bytes.
func hashPassword(password string, memory uint32) (passwordHash, error) {
	h := newPasswordHash(memory)
	if len(password) < minPassword || len(password) > maxPassword {
		return h, fmt.Errorf("a password of %d to %d bytes is needed", minPassword, maxPassword)
	}
	copy(h.key[:], h.derive(password))
	return h, nil
}

// openAccounts keeps the configured accounts; without any it makes two. It keeps the
// owner's password beside them.
func (s *Sandbox) openAccounts(cfg Config) error {
	accounts := cfg.Accounts
	if len(accounts) == 0 {
		accounts = []Account{
			{ID: "lark-4471", Name: "Robin", Login: person.Login{Email: "robin@example.com", Password: drawPassword()}},
			{ID: "lark-5820", Name: "Sam", Login: person.Login{Email: "sam@example.com", Password: drawPassword()}},
		}
	}
	memory := cmp.Or(cfg.PasswordMemory, passwordMemory)
	ids := map[string]bool{}
	for _, a := range accounts {
		if a.ID == "" || a.Email == "" {
			return fmt.Errorf("sandbox: Accounts: %q needs an ID and an Email", a.Email)
		}
		if ids[a.ID] || s.account(a.Email) != nil {
			return fmt.Errorf("sandbox: Accounts: ID or Email of %q appears twice", a.Email)
		}
		ids[a.ID] = true
		password, err := hashPassword(a.Password, memory)
		if err != nil {
			return fmt.Errorf("sandbox: Accounts: %q: %w", a.Email, err)
		}
		s.accounts = append(s.accounts, &account{id: a.ID, name: a.Name, email: a.Email, password: password})
		s.announced = append(s.announced, a.Login)
	}
	s.noAccount = &account{password: newPasswordHash(memory)}

	s.ownerLogin.Password = cmp.Or(cfg.OwnerPassword, drawPassword())
	var err error
	if s.ownerPassword, err = hashPassword(s.ownerLogin.Password, memory); err != nil {
		return fmt.Errorf("sandbox: OwnerPassword: %w", err)
	}
	return nil
}

// hasAccount tells whether a user is configured, by id. Of one who no longer is, grants
// hold nothing.
func (s *Sandbox) hasAccount(id string) bool {
	return slices.ContainsFunc(s.accounts, func(a *account) bool { return a.id == id })
}

// account finds an account by email, or nil.
func (s *Sandbox) account(email string) *account {
	for _, a := range s.accounts {
		if foldEmail(a.email) == foldEmail(email) {
			return a
		}
	}
	return nil
}

// foldEmail makes those equal that are the same email. By way of the lower case, no
// letter with two of them is a second spelling with a limit of its own.
func foldEmail(email string) string {
	return strings.ToUpper(strings.ToLower(strings.TrimSpace(email)))
}

// loginsOfPeer is how many times as many logins as with one email may fail from one
// address.
const loginsOfPeer = 10

// signIn checks a login that came from peer, an address with a port. Neither its
// answer nor its time tells whether an account has the email: failed logins are
// limited for each email that was typed, and for each peer. wait says for how long no
// further one is looked at, not even with the right password: it would tell a guesser
// that it is.
func (s *Sandbox) signIn(email, password, peer string) (_ *account, wait time.Duration) {
	wait, back := takeAll(s.now(), call{s.loginLimit, hashOf(foldEmail(email))}, call{s.peerLoginLimit, peerKey(peer)})
	if wait > 0 {
		return nil, wait
	}
	a := s.account(email)
	if a == nil {
		a = s.noAccount
	}
	if len(password) > maxPassword || !a.password.fits(password) || a == s.noAccount {
		return nil, 0
	}
	back()
	return a, 0
}

// peerKey is what of a peer's address stays the same: of IPv6 the /64, which one
// subscriber has to itself.
func peerKey(peer string) string {
	at, err := netip.ParseAddrPort(peer)
	if err != nil {
		return peer
	}
	addr := at.Addr().Unmap().WithZone("")
	if network, err := addr.Prefix(64); err == nil && addr.Is6() {
		return network.String()
	}
	return addr.String()
}
