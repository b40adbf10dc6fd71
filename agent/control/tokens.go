package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/agent"
)

// TokenPrefix begins the secret of every token.
const TokenPrefix = "pact_agent_"

// States of a token.
const (
	TokenActive  = "active"
	TokenRevoked = "revoked"
	TokenExpired = "expired"
)

// touchEvery is how often at most the last use of a token is written down.
const touchEvery = time.Hour

// maxTokenLife bounds a token's life, so that a forgotten one ends.
const maxTokenLife = 366 * 24 * time.Hour

// Tokens are the tokens of a profile's control plane. Only their hashes are kept.
// What changes here is seen by the running server at once, whoever changes it. Safe
// for concurrent use.
type Tokens struct {
	store     agent.Store
	principal string
	now       func() time.Time
}

// NewTokens are the tokens of a principal in a profile's store; now nil is time.Now.
func NewTokens(store agent.Store, principal string, now func() time.Time) *Tokens {
	if now == nil {
		now = time.Now
	}
	return &Tokens{store, principal, now}
}

// TokenView is a token as a surface shows it: without its secret, which nobody has
// but who it was made for.
type TokenView struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"` // who acts, in the records of what is done with it
	Scope    Scope     `json:"scope"`
	State    string    `json:"state"` // active, revoked or expired
	Created  time.Time `json:"created"`
	Expires  time.Time `json:"expires"`
	LastUsed time.Time `json:"lastUsed,omitzero"` // to the hour
	Revoked  time.Time `json:"revoked,omitzero"`
	// TakenBack is, of Revoke, how many approvals that were given by it and not sent wait
	// for the owner's word again.
	TakenBack int `json:"takenBack,omitzero"`
}

// CreateToken says what token to make.
type CreateToken struct {
	// Name is 1 to 64 characters of a-z, A-Z, 0-9 and ".", "_", "-", "@"; each is given
	// out once.
	Name  string
	Scope Scope
	// ExpiresIn is its life; at most 366 days. Zero: 90 days.
	ExpiresIn time.Duration
}

// tokenData is what a token's record holds beside its head: the key is the hash.
type tokenData struct {
	Name     string    `json:"name"`
	Scope    Scope     `json:"scope"`
	Expires  time.Time `json:"expires"`
	LastUsed time.Time `json:"lastUsed,omitzero"`
	Revoked  time.Time `json:"revoked,omitzero"`
}

var tokenName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,64}$`)

// errNoToken: there is no such token, or not any more.
var errNoToken = errors.New("the token is not accepted")

// Create makes a token. The secret is shown this once.
func (t *Tokens) Create(ctx context.Context, c CreateToken) (TokenView, agent.Secret, error) {
	if !tokenName.MatchString(c.Name) {
		return TokenView{}, "", fmt.Errorf("name: %q: want 1 to 64 characters of a-z, A-Z, 0-9, ., _, - and @", c.Name)
	}
	if _, err := ParseScope(string(c.Scope)); err != nil {
		return TokenView{}, "", err
	}
	if c.ExpiresIn == 0 {
		c.ExpiresIn = 90 * 24 * time.Hour
	}
	if c.ExpiresIn < time.Minute || c.ExpiresIn > maxTokenLife {
		return TokenView{}, "", errors.New("expiry: want 1 minute to 366 days")
	}
	secret := TokenPrefix + rand.Text() + rand.Text() // 260 bits
	r := agent.Record{Head: agent.Head{
		ID: "token-" + strings.ToLower(rand.Text()[:16]), Principal: t.principal, Key: tokenHash(secret),
		State: TokenActive, Created: t.now().UTC().Truncate(time.Microsecond),
	}}
	d := tokenData{Name: c.Name, Scope: c.Scope, Expires: r.Created.Add(c.ExpiresIn)}
	err := t.store.Update(ctx, func(tx agent.Tx) error {
		all, err := tx.Find(agent.KindToken, agent.Query{Principal: t.principal})
		if err != nil {
			return err
		}
		for _, other := range all {
			// A name is an actor's in the records, and stays that one's.
			if have, err := readToken(other); err != nil {
				return err
			} else if have.Name == c.Name {
				return fmt.Errorf("name: there is or was a token named %s: choose another", c.Name)
			}
		}
		return putToken(tx, r, d)
	})
	if err != nil {
		return TokenView{}, "", fmt.Errorf("make a token: %w", err)
	}
	return t.view(r, d), agent.Secret(secret), nil
}

// List lists the tokens, newest first; those that ended too.
func (t *Tokens) List(ctx context.Context) ([]TokenView, error) {
	views := []TokenView{}
	err := t.store.View(ctx, func(tx agent.Tx) error {
		all, err := tx.Find(agent.KindToken, agent.Query{Principal: t.principal})
		for _, r := range all {
			d, err := readToken(r)
			if err != nil {
				return err
			}
			views = append(views, t.view(r, d))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the tokens: %w", err)
	}
	return views, nil
}

// Revoke ends a token, given its id or name, for good, and takes back what was approved
// by it and is not sent yet (agent.TakeBack); again, it changes nothing. Errors wrap
// agent.ErrNotFound.
func (t *Tokens) Revoke(ctx context.Context, which string) (v TokenView, err error) {
	err = t.store.Update(ctx, func(tx agent.Tx) error {
		all, err := tx.Find(agent.KindToken, agent.Query{Principal: t.principal})
		if err != nil {
			return err
		}
		for _, r := range all {
			d, err := readToken(r)
			if err != nil {
				return err
			}
			if r.ID != which && d.Name != which {
				continue
			}
			taken := 0
			if r.State == TokenActive {
				r.State, d.Revoked = TokenRevoked, t.now().UTC()
				if err := putToken(tx, r, d); err != nil {
					return err
				}
				if taken, err = agent.TakeBack(tx, t.principal, actorOf(d.Name), d.Revoked); err != nil {
					return err
				}
			}
			v = t.view(r, d)
			v.TakenBack = taken
			return nil
		}
		return agent.ErrNotFound
	})
	if err != nil {
		return TokenView{}, fmt.Errorf("revoke the token: %w", err)
	}
	return v, nil
}

// accept finds the token of a secret that is good now. The error is errNoToken, or
// the store's.
func (t *Tokens) accept(ctx context.Context, secret string) (TokenView, error) {
	v, err := t.find(ctx, agent.Query{Key: tokenHash(secret)})
	if err != nil {
		return v, err
	}
	if t.now().Sub(v.LastUsed) >= touchEvery {
		t.touch(ctx, v.ID)
	}
	return v, nil
}

// find is the token of a query that is good now.
func (t *Tokens) find(ctx context.Context, q agent.Query) (v TokenView, err error) {
	q.Principal = t.principal
	err = t.store.View(ctx, func(tx agent.Tx) error {
		rs, err := tx.Find(agent.KindToken, q)
		if err != nil {
			return err
		}
		if len(rs) != 1 {
			return errNoToken
		}
		d, err := readToken(rs[0])
		if v = t.view(rs[0], d); err == nil && v.State != TokenActive {
			return errNoToken
		}
		return err
	})
	return v, err
}

// stands reports whether a token that was accepted is still good.
func (t *Tokens) stands(ctx context.Context, id string) error {
	return t.store.View(ctx, func(tx agent.Tx) error { return t.standsIn(tx, id) })
}

// standsIn is stands in a transaction.
func (t *Tokens) standsIn(tx agent.Tx, id string) error {
	r, err := tx.Get(agent.KindToken, t.principal, id)
	if err != nil {
		return err
	}
	d, err := readToken(r)
	if err == nil && t.view(r, d).State != TokenActive {
		err = errNoToken
	}
	return err
}

// actorOf is who acts by a token of a name, as records keep it.
func actorOf(name string) string { return "token " + name }

// touch notes that a token was used. It matters to nobody if it cannot.
func (t *Tokens) touch(ctx context.Context, id string) {
	_ = t.store.Update(ctx, func(tx agent.Tx) error {
		r, err := tx.Get(agent.KindToken, t.principal, id)
		if err != nil {
			return err
		}
		d, err := readToken(r)
		if err != nil {
			return err
		}
		if d.LastUsed = t.now().UTC().Truncate(touchEvery); d.LastUsed.Before(r.Created) {
			d.LastUsed = r.Created
		}
		return putToken(tx, r, d)
	})
}

func (t *Tokens) view(r agent.Record, d tokenData) TokenView {
	v := TokenView{
		ID: r.ID, Name: d.Name, Scope: d.Scope, State: r.State, Created: r.Created,
		Expires: d.Expires, LastUsed: d.LastUsed, Revoked: d.Revoked,
	}
	if v.State == TokenActive && !t.now().Before(d.Expires) {
		v.State = TokenExpired
	}
	return v
}

func tokenHash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func putToken(tx agent.Tx, r agent.Record, d tokenData) (err error) {
	if r.Data, err = json.Marshal(d, json.Deterministic(true)); err != nil {
		return fmt.Errorf("encode the token: %w", err)
	}
	return tx.Put(agent.KindToken, r)
}

func readToken(r agent.Record) (d tokenData, err error) {
	if json.Unmarshal(r.Data, &d) != nil || !tokenName.MatchString(d.Name) {
		return d, fmt.Errorf("%w: token %s cannot be read", agent.ErrDamaged, r.ID)
	}
	if _, err := ParseScope(string(d.Scope)); err != nil {
		return d, fmt.Errorf("%w: token %s has no scope", agent.ErrDamaged, r.ID)
	}
	return d, nil
}
