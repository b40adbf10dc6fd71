package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// stored is a store of a property test, which can start again.
type stored struct {
	*store
	path string
	now  time.Time
}

func newStored(t *rapid.T, dir string) *stored {
	s := &stored{path: filepath.Join(dir, newUUID()), now: testStart}
	s.open(t)
	t.Cleanup(func() { _ = s.close() })
	return s
}

func (s *stored) open(t *rapid.T) {
	p := Defaults()
	p.GrantTTL, p.DeviceCodeTTL, p.ContextIdle = time.Hour, 10*time.Minute, 30*time.Minute
	var err error
	if s.store, err = newStore(s.path, p); err != nil {
		t.Fatal(err)
	}
	// Waiting for the disk proves nothing here, and takes most of the time.
	if err := s.view(t.Context(), func(x *tx) error {
		_, err := x.exec("PRAGMA synchronous = OFF")
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// restart is one of the actions of each machine.
func (s *stored) restart(t *rapid.T) {
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s.open(t)
}

func (s *stored) wait(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "minutes")) * time.Minute)
}

// anyOf draws one of the keys that are known, or one that is not.
func anyOf[V any](t *rapid.T, name string, known map[string]V) string {
	return rapid.SampledFrom(append(slices.Sorted(maps.Keys(known)), "unknown")).Draw(t, name)
}

var parties = []party{
	{LarklineID, caller{"https://pa.example", "a"}},
	{LarklineID, caller{"https://pa.example", "b"}},
	{LarklineID, caller{"https://other.example", "a"}},
	{"OTHER", caller{"https://pa.example", "a"}},
}

// modelGrant is what the model knows of a grant, modelRefresh of a refresh token.
type modelGrant struct {
	grant
	ended bool
}

type modelRefresh struct {
	grant string
	spent bool
}

// TestGrantsProperty: whatever happens in whatever order, the store gives what a map
// of grants and one of refresh tokens would.
func TestGrantsProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := newStored(t, dir)
		grants, refreshes, devices := map[string]*modelGrant{}, map[string]*modelRefresh{}, map[string]authorization{}
		n := 0
		holds := func(id string) bool {
			g, ok := grants[id]
			return ok && !g.ended && s.now.Before(g.expires)
		}
		refused := func(err error, code string) {
			t.Helper()
			var refusal *oauthError
			if code == "" && err == nil {
				return
			}
			if !errors.As(err, &refusal) || refusal.Code != code {
				t.Fatalf("%v, want %q", err, code)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"consent": func(t *rapid.T) {
				n++
				p := rapid.SampledFrom(parties).Draw(t, "party")
				asked := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 1, 3, rapid.ID).Draw(t, "asked")
				a, err := s.authorize(t.Context(), authorization{device: fmt.Sprint("device", n), party: p, scopes: asked}, s.now)
				if err != nil {
					t.Fatal(err)
				}
				a.user = rapid.SampledFrom([]string{"robin", "kim"}).Draw(t, "user")
				a.granted = asked[:rapid.IntRange(0, len(asked)).Draw(t, "granted")]
				a.state = authPending
				if rapid.Bool().Draw(t, "decided") {
					waited, err := s.decide(t.Context(), p.brand, a.userCode, a.user, a.granted, s.now)
					if err != nil || !waited {
						t.Fatal(waited, err)
					}
					if a.state = authApproved; len(a.granted) == 0 {
						a.state = authDenied
					}
				}
				devices[a.device] = a
			},
			"collect": func(t *rapid.T) {
				device := anyOf(t, "device", devices)
				p := rapid.SampledFrom(parties).Draw(t, "party")
				a, known := devices[device]
				if known && rapid.Bool().Draw(t, "their own") {
					p = a.party
				}
				n++
				id, refresh := fmt.Sprint("grant", n), fmt.Sprint("refresh", n)
				g, err := s.collect(t.Context(), device, p, id, refresh, s.now)
				var refusal *oauthError
				var want []string // codes, any of them
				switch {
				case !known || a.party != p || a.state == authUsed:
					want = []string{"invalid_grant"}
				case a.state == authDenied:
					want = []string{"access_denied"}
				case !s.now.Before(a.expires):
					want = []string{"expired_token"}
				case a.state == authPending:
					want = []string{"authorization_pending", "slow_down"}
				default:
					if err != nil || g.id != id || g.party != p || g.user != a.user || !slices.Equal(g.scopes, a.granted) || !g.expires.Equal(s.now.Add(s.params.GrantTTL)) {
						t.Fatalf("%v: %+v of %+v", err, g, a)
					}
					a.state = authUsed
					devices[device] = a
					grants[id], refreshes[refresh] = &modelGrant{grant: g}, &modelRefresh{grant: id}
					return
				}
				if s.now.Sub(a.expires) > s.params.DeviceCodeTTL {
					want = append(want, "invalid_grant") // it may be forgotten
				}
				if !errors.As(err, &refusal) || !slices.Contains(want, refusal.Code) {
					t.Fatalf("%v, want %v", err, want)
				}
			},
			"refresh": func(t *rapid.T) {
				old := anyOf(t, "token", refreshes)
				r, known := refreshes[old]
				p := rapid.SampledFrom(parties).Draw(t, "party")
				if known && rapid.IntRange(0, 3).Draw(t, "their own") > 0 {
					p = grants[r.grant].party
				}
				wanted := rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 2).Draw(t, "wanted")
				n++
				next := fmt.Sprint("refresh", n)
				if rapid.IntRange(0, 4).Draw(t, "kept") == 0 {
					next = ""
				}
				g, err := s.rotate(t.Context(), old, p, next, wanted, s.now)
				switch {
				case !known || !holds(r.grant) || grants[r.grant].party != p:
					refused(err, "invalid_grant")
				case r.spent:
					refused(err, "invalid_grant")
					grants[r.grant].ended = true
				case !containsAll(grants[r.grant].scopes, wanted):
					refused(err, "invalid_scope")
				default:
					refused(err, "")
					if g.id != r.grant {
						t.Fatalf("%+v, want %s", g, r.grant)
					}
					if next != "" {
						r.spent = true
						refreshes[next] = &modelRefresh{grant: r.grant}
					}
				}
			},
			"revoke": func(t *rapid.T) {
				id := anyOf(t, "grant", grants)
				held, err := s.revoke(t.Context(), id, s.now)
				if err != nil || held != holds(id) {
					t.Fatalf("%s: %v, %v", id, held, err)
				}
				if held {
					grants[id].ended = true
				}
			},
			"wait":    s.wait,
			"restart": s.restart,
			"": func(t *rapid.T) {
				listed := map[string]grant{}
				all, err := s.grantList(t.Context(), s.now)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range all {
					listed[g.id] = g
				}
				for id, want := range grants {
					got, ok, err := s.grant(t.Context(), id, s.now)
					if err != nil || ok != holds(id) || ok && (got.party != want.party || got.user != want.user || !slices.Equal(got.scopes, want.scopes)) {
						t.Fatalf("%s: %+v, %v, %v; want %+v", id, got, ok, err, want)
					}
					if g, in := listed[id]; in != s.now.Before(want.expires) || in && g.revoked.IsZero() == want.ended {
						t.Fatalf("%s: listed %v as %+v, want %+v", id, in, g, want)
					}
				}
				if len(listed) > len(grants) {
					t.Fatalf("%d listed of %d", len(listed), len(grants))
				}
			},
		})
	})
}

// permit makes a grant of a user's, and a token under it that does not expire.
func (s *stored) permit(t *rapid.T, p party, user string) delegated {
	who := delegated{id: user, grantID: newUUID()}
	if err := s.update(t.Context(), func(x *tx) error {
		_, err := x.exec("INSERT INTO grants (brand, issuer, subject, id, user, scopes, made, expires) VALUES (?, ?, ?, ?, ?, '[]', ?, ?)",
			p.columns(who.grantID, user, instant{s.now}, instant{s.now.Add(time.Hour)})...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return who
}

// modelContext is what the model knows of a conversation.
type modelContext struct {
	party  party
	user   string
	closed bool
	used   time.Time
	bodies map[string][]byte // nil: no reply yet
	told   map[string]string // the user that a reply is for
}

// TestConversationsProperty: whatever happens in whatever order, the store answers
// as a map of conversations would.
func TestConversationsProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := newStored(t, dir)
		contexts, memories := map[string]*modelContext{}, map[string][]byte{}
		unheard := map[opening]string{}
		n := 0
		begin := func(t *rapid.T, p party, in, message, user string) {
			who := delegated{id: user}
			ends := rapid.SampledFrom([]string{"", "", "", "", "before", "while it waits"}).Draw(t, "the delegation ends")
			if user == "" {
				ends = ""
			} else {
				who = s.permit(t, p, user)
			}
			end := s.revoke
			if rapid.Bool().Draw(t, "by time") {
				end = func(context.Context, string, time.Time) (bool, error) {
					who.expires = s.now
					return true, nil
				}
			}
			if ends == "before" {
				if _, err := end(t.Context(), who.grantID, s.now); err != nil {
					t.Fatal(err)
				}
			}
			id, stored, err := s.begin(t.Context(), p, in, message, who, s.now)
			if ends == "before" {
				if !errors.Is(err, errEnded) || stored != nil {
					t.Fatalf("after the end: %s, %v", stored, err)
				}
				return
			}
			given := in
			if in == "" {
				in = unheard[opening{p, message}]
			}
			if in == "" {
				if err != nil || stored != nil || contexts[id] != nil {
					t.Fatalf("opened %s: %s, %v", id, stored, err)
				}
				contexts[id] = &modelContext{party: p, used: s.now, bodies: map[string][]byte{message: nil}, told: map[string]string{}}
			} else {
				c, known := contexts[in]
				body, seen := []byte(nil), false
				if known {
					body, seen = c.bodies[message]
				}
				var want error
				switch {
				case !known || c.party != p:
					want = errUnknownContext
				case c.user != "" && user != "" && c.user != user:
					want = errOtherUser
				case seen && body == nil:
					want = errNoReply
				case seen && c.told[message] != user:
					want = errOtherUser
				case seen:
				case c.closed || s.now.Sub(c.used) >= s.params.ContextIdle:
					want = errClosed
				}
				if !errors.Is(err, want) || (want == nil) != (err == nil) || !bytes.Equal(stored, body) && want == nil || want != nil && stored != nil {
					t.Fatalf("%s in %q: %q, %v; want %q, %v", message, in, stored, err, body, want)
				}
				if want != nil || seen {
					return
				}
				c.used, c.bodies[message] = s.now, nil
				id = in
			}
			c := contexts[id]
			if ends != "" {
				if _, err := end(t.Context(), who.grantID, s.now); err != nil {
					t.Fatal(err)
				}
			}
			from, err := s.resume(t.Context(), id, who, s.now)
			want := error(nil)
			switch {
			case ends != "":
				want = errEnded
			case c.closed:
				want = errClosed
			case c.user != "" && user != "" && c.user != user:
				want = errOtherUser
			}
			if !errors.Is(err, want) || (want == nil) != (err == nil) {
				t.Fatalf("resumed %s as %q: %v, want %v", id, user, err, want)
			}
			if ends != "" {
				if err := s.release(t.Context(), id, message, nil); err != nil {
					t.Fatal(err)
				}
				delete(c.bodies, message)
				return
			}
			memory := p.brand + " " + user
			if user != "" && !bytes.Equal(from.memory, memories[memory]) || user == "" && from.memory != nil {
				t.Fatalf("remembers %s of %q, want %s", from.memory, user, memories[memory])
			}
			switch rapid.SampledFrom([]string{"answers", "answers", "steps up", "dies"}).Draw(t, "the turn") {
			case "steps up":
				if err := s.release(t.Context(), id, message, []string{"x"}); err != nil {
					t.Fatal(err)
				}
				delete(c.bodies, message)
			case "answers":
				n++
				done := outcome{
					brand: p.brand, conversation: id, messageID: message, body: fmt.Append(nil, "reply ", n), user: who,
					reply: Reply{Close: rapid.IntRange(0, 5).Draw(t, "closes") == 0}, at: s.now,
					unheard: given == "" && rapid.Bool().Draw(t, "unheard"),
				}
				if rapid.Bool().Draw(t, "remembers") {
					done.reply.Memory = fmt.Append(nil, n)
				}
				if err := s.settle(t.Context(), done); err != nil {
					t.Fatal(err)
				}
				done.messageID = "unknown"
				if err := s.settle(t.Context(), done); !errors.Is(err, errStore) {
					t.Fatalf("settled a message that was not reserved: %v", err)
				}
				c.bodies[message], c.told[message] = done.body, user
				c.closed = c.closed || done.reply.Close
				if c.user == "" {
					c.user = user
				}
				if user != "" && done.reply.Memory != nil {
					memories[memory] = done.reply.Memory
				}
				if done.unheard {
					unheard[opening{p, message}] = id
				}
			}
		}
		user := rapid.SampledFrom([]string{"", "", "robin", "kim"})
		message := rapid.SampledFrom([]string{"m1", "m2", "m3", "m4"})
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				begin(t, rapid.SampledFrom(parties).Draw(t, "party"), "", message.Draw(t, "message"), user.Draw(t, "user"))
			},
			"say": func(t *rapid.T) {
				p, in := rapid.SampledFrom(parties).Draw(t, "party"), "unknown"
				// Ids are random, so that they cannot be drawn.
				if ids := slices.SortedFunc(maps.Keys(contexts), func(a, b string) int { return contexts[a].used.Compare(contexts[b].used) }); len(ids) > 0 {
					in = ids[rapid.IntRange(0, len(ids)-1).Draw(t, "which")]
					if rapid.IntRange(0, 3).Draw(t, "their own") > 0 {
						p = contexts[in].party
					}
				}
				begin(t, p, in, message.Draw(t, "message"), user.Draw(t, "user"))
			},
			"wait":    s.wait,
			"restart": s.restart,
		})
	})
}

// opening is a message without a contextId.
type opening struct {
	party     party
	messageID string
}
