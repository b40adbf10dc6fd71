package sandbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Brand is a business with an agent at this Provider.
type Brand struct {
	// ID is the Provider's id of the brand: opaque, part of the interface URL.
	ID string
	// Name and Description are what the card says.
	Name        string
	Description string
	Skills      []Skill
	// Scopes are the permissions a user can give, in the order in which card
	// and consent page list them. A brand without scopes is Identity only.
	Scopes []Scope
	// NotShared says, one sentence each, what no permission gives away; the
	// consent page lists it.
	NotShared []string
	// Asks are messages that need a permission, and Closes one that ends a
	// conversation: who tries the brand out can use them.
	Asks   []Ask
	Closes string
	// StepUpFirst, if any, are the permissions that a turn without any delegation is
	// asked for, whatever it says.
	StepUpFirst []string
	// Respond answers turns. It must be safe for concurrent use; its context does
	// not end when the caller goes away. After an error the turn is never run again.
	Respond func(context.Context, Turn) (Reply, error)

	// close ends what still runs for Respond; nil: nothing does.
	close func()
}

// Skill is a skill as cards state it.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Examples    []string `json:"examples,omitempty"`
}

// Scope is a permission: its id on the wire and the brand's words for it.
type Scope struct {
	ID          string
	Description string
}

// Ask is a message that the brand cannot answer without a permission.
type Ask struct {
	Scope string `json:"scope"`
	Text  string `json:"text"`
}

// Turn is one message that a brand is to answer.
type Turn struct {
	// Issuer and Subject say which user's personal agent speaks.
	Issuer, Subject string
	ContextID       string
	Text            string
	// User is the brand's own id of the user, and Scopes what they allowed; both
	// are empty without a delegation.
	User   string
	Scopes []string
	// Memory is what the brand's last reply to this user left behind, nil at first and
	// without a delegation. It is the same for all of the user's personal agents.
	Memory jsontext.Value
	// At is the time of the turn.
	At time.Time
}

// Allowed tells whether the turn may use a scope.
func (t Turn) Allowed(scope string) bool { return slices.Contains(t.Scopes, scope) }

// Reply is what a brand answers.
type Reply struct {
	Text string
	// Missing asks for a step-up: scopes that the turn needs and does not have.
	// A brand that sets it must not have done anything.
	Missing []string
	// Used and Actions go into the receipt of a delegated turn: the scopes made
	// use of and the tools that ran.
	Used    []string
	Actions []Action
	// Memory is what the brand's next turn with this user gets, stored together with
	// the reply; nil leaves it as it is. Turns of one user run one at a time. Without a
	// delegation, and with Missing, it is not kept.
	Memory jsontext.Value
	// Close ends the conversation after this reply.
	Close bool
}

// Action is a tool that ran in a turn, as receipts list it. ArgsHash identifies
// the arguments; it is empty for a tool that takes none.
type Action struct {
	Tool     string `json:"tool"`
	ArgsHash string `json:"argsHash,omitempty"`
}

var (
	brandID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	scopeID = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]+$`) // RFC 6749 appendix A.4
)

func (b *Brand) validate() error {
	switch {
	case !brandID.MatchString(b.ID):
		return fmt.Errorf("id %q: use 1-64 letters, digits, '-' and '_'", b.ID)
	case b.Name == "" || b.Description == "":
		return errors.New("name and description must not be empty")
	case b.Respond == nil:
		return errors.New("no Respond")
	}
	seen := map[string]bool{}
	for _, s := range b.Scopes {
		if !scopeID.MatchString(s.ID) || s.Description == "" {
			return fmt.Errorf("scope %q: use an RFC 6749 scope token and a description", s.ID)
		}
		if seen[s.ID] {
			return fmt.Errorf("scope %q appears twice", s.ID)
		}
		seen[s.ID] = true
	}
	for _, first := range b.StepUpFirst {
		if !seen[first] {
			return fmt.Errorf("StepUpFirst: %q is not one of its scopes", first)
		}
	}
	for _, ask := range b.Asks {
		if !seen[ask.Scope] || strings.TrimSpace(ask.Text) == "" {
			return fmt.Errorf("field Asks: %q needs a text and a scope of the brand, not %q", ask.Text, ask.Scope)
		}
	}
	return nil
}

// askFirst has the brand ask for StepUpFirst before it looks at a turn.
func (b *Brand) askFirst() {
	first, respond := b.StepUpFirst, b.Respond
	if len(first) == 0 {
		return
	}
	b.Respond = func(ctx context.Context, t Turn) (Reply, error) {
		if t.User == "" {
			return Reply{Missing: first}, nil
		}
		return respond(ctx, t)
	}
}

func (b *Brand) delegated() bool { return len(b.Scopes) > 0 }

// scopeIDs are the brand's scopes in their order.
func (b *Brand) scopeIDs() []string {
	ids := make([]string, len(b.Scopes))
	for i, s := range b.Scopes {
		ids[i] = s.ID
	}
	return ids
}

// pick returns those of the brand's scopes that are wanted, once each and in the
// brand's order; ok is false if something else is wanted too, or nothing.
func (b *Brand) pick(wanted []string) (picked []string, ok bool) {
	left := map[string]bool{}
	for _, w := range wanted {
		left[w] = true
	}
	for _, s := range b.Scopes {
		if left[s.ID] {
			picked = append(picked, s.ID)
			delete(left, s.ID)
		}
	}
	return picked, len(picked) > 0 && len(left) == 0
}

// describe puts the brand's words for scopes into a phrase.
func (b *Brand) describe(scopes []string) string {
	var words []string
	for _, s := range b.Scopes {
		if slices.Contains(scopes, s.ID) {
			words = append(words, "“"+s.Description+"”")
		}
	}
	return strings.Join(words, ", ")
}
