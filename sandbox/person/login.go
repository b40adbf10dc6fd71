package person

import (
	"fmt"
	"log/slog"
)

// Login is what a user signs in with. It prints without the password, and encodes
// as JSON with it: a sandbox's ready line is there to tell it.
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
