package sandbox

import (
	"cmp"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"
)

// Account is a user who can sign in with the brands.
type Account struct {
	// ID is the user's id at the brands: the sub of delegation tokens.
	ID string
	// Name greets the user on the pages.
	Name string
	Login
}

// Login is what a user signs in with. It prints without the password, and encodes
// as JSON with it: the ready line is there to tell it.
type Login struct {
	Email    string `json:"email"`
	Password string `json:"password"`
}

// String leaves the password out.
func (l Login) String() string { return l.Email + " [redacted]" }

// GoString leaves the password out.
func (l Login) GoString() string { return l.String() }

// Format leaves the password out, whatever the verb.
func (l Login) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(l.String())) }

// LogValue leaves the password out.
func (l Login) LogValue() slog.Value { return slog.StringValue(l.String()) }

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

// openAccounts keeps the configured accounts; without any it makes one.
func (s *Sandbox) openAccounts(cfg Config) error {
	accounts := cfg.Accounts
	if len(accounts) == 0 {
		const letters = "abcdefghjkmnpqrstuvwxyz23456789"
		password := randomLetters(letters, 5) + "-" + randomLetters(letters, 5) + "-" + randomLetters(letters, 5)
		accounts = []Account{{ID: "lark-4471", Name: "Robin", Login: Login{Email: "robin@example.com", Password: password}}}
	}
	memory := cmp.Or(cfg.PasswordMemory, passwordMemory)
	ids := map[string]bool{}
	for _, a := range accounts {
		if a.ID == "" || a.Email == "" || len(a.Password) < 8 || len(a.Password) > maxPassword {
			return fmt.Errorf("sandbox: Accounts: %q needs an ID, an Email and a Password of 8 to %d bytes", a.Email, maxPassword)
		}
		if ids[a.ID] || s.account(a.Email) != nil {
			return fmt.Errorf("sandbox: Accounts: ID or Email of %q appears twice", a.Email)
		}
		ids[a.ID] = true
		kept := &account{id: a.ID, name: a.Name, email: a.Email, password: newPasswordHash(memory)}
		copy(kept.password.key[:], kept.password.derive(a.Password))
		s.accounts = append(s.accounts, kept)
	}
	s.noAccount = &account{password: newPasswordHash(memory)}
	s.announced = accounts[0].Login
	return nil
}

// account finds an account by email, or nil.
func (s *Sandbox) account(email string) *account {
	for _, a := range s.accounts {
		if strings.EqualFold(a.email, strings.TrimSpace(email)) {
			return a
		}
	}
	return nil
}

// signIn checks a login. It takes as long for an account that does not exist, and
// failed logins are limited for each account and together for those that do not
// exist; wait says for how long no further one is looked at.
func (s *Sandbox) signIn(email, password string) (_ *account, wait time.Duration) {
	a := s.account(email)
	if a == nil {
		a = s.noAccount
	}
	wait, back := s.loginLimit.take(a.id, s.now())
	if wait > 0 {
		return nil, wait
	}
	if len(password) > maxPassword || !a.password.fits(password) || a == s.noAccount {
		return nil, 0
	}
	back()
	return a, 0
}
