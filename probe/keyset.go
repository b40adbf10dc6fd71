package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"github.com/pactsigner/pactsigner/jwks"
)

// Schedule is what the signer's operators' face says of an issuer's keys.
type Schedule struct {
	// JWKS is the key set as it is to be served.
	JWKS []byte
	// Revision is that of the schedule it is made from.
	Revision uint64
	Keys     []Key
	// Replicas are the live replicas and the revisions that they serve.
	Replicas map[string]uint64
}

// Key is a key of a schedule.
type Key struct {
	ID string
	// State is as in admin.proto: pending, published, signing, retiring, removed, revoked.
	State string
	// SignAt and RetireAt bound when it signs. Zero: not planned.
	SignAt, RetireAt time.Time
}

// keySetAgain is how long after a disagreement the key sets are asked for again.
const keySetAgain = time.Second

// keySets checks the published key set, and that replicas and schedule agree with
// it: now, or after a while in which a change reaches everybody.
func (r *round) keySets(ctx context.Context) {
	at, start := r.cfg.Now(), time.Now()
	set, public, err := r.fetchSet(ctx, r.way)
	v := passed("%d %s", len(set.Keys), plural(len(set.Keys), "key", "keys"))
	if err == nil {
		err = r.discovery(ctx)
	}
	if err != nil {
		v = failed("Providers cannot verify tokens. Does "+r.cfg.Issuer+jwks.WellKnownPath+" reach the signer?", "%v", err)
	}
	r.keep(CheckJWKS, at, time.Since(start), v)
	compare := []comparison{}
	if len(r.replicas) > 0 {
		compare = append(compare, comparison{CheckReplicas, r.agreement()})
	}
	if r.cfg.Schedule != nil {
		compare = append(compare, comparison{CheckSchedule, r.onSchedule})
	}
	var all sync.WaitGroup
	for _, c := range compare {
		all.Go(func() {
			r.check(c.name, func() verdict { return r.settled(ctx, public, c.run) })
		})
	}
	all.Wait()
}

// comparison compares the published set, nil if it cannot be had, with others. It
// returns what it saw, or what does not agree.
type comparison struct {
	name string
	run  func(ctx context.Context, public []byte) (string, error)
}

// settled makes a comparison until it succeeds or the time is over in which a change
// reaches everybody.
func (r *round) settled(ctx context.Context, public []byte, compare func(context.Context, []byte) (string, error)) verdict {
	for start := time.Now(); ; {
		seen, err := compare(ctx, public)
		took := time.Since(start).Round(time.Second)
		switch {
		case err == nil && took >= keySetAgain:
			return passed("%s; agreed after %v", seen, took)
		case err == nil:
			return passed("%s", seen)
		case time.Since(start) >= r.cfg.Settle || !pause(ctx, keySetAgain):
			return failed("A change reaches every replica within 60 s. See pactctl keys, pactctl fleet status, and the replica's log.", "%v, for %v", err, took)
		}
		if _, again, err := r.fetchSet(ctx, r.way); err == nil {
			public = again
		}
	}
}

// published is the key set as it is served now.
func (r *round) published(ctx context.Context) (jwks.Set, error) {
	set, _, err := r.fetchSet(ctx, r.way)
	return set, err
}

// errCached: a cache answered, whose copy may be older than what the signer serves.
var errCached = errors.New("a cache answered")

// fetchSet gets the issuer's key set. The document is nil if a cache answered.
func (r *round) fetchSet(ctx context.Context, w *way) (jwks.Set, []byte, error) {
	a, err := r.get(ctx, w, jwks.WellKnownPath)
	if err != nil {
		return jwks.Set{}, nil, err
	}
	set, err := jwks.Parse(a.body)
	switch {
	case err != nil:
		return set, nil, err
	case len(set.Keys) == 0:
		return set, nil, errors.New("the key set holds no key that verifies anything")
	case slices.ContainsFunc(set.Keys, func(k jwks.Key) bool { return k.ID == "" }):
		return set, nil, errors.New("the key set holds a key without kid")
	case strings.Contains(strings.ToLower(a.header.Get("Cache-Control")), "no-store"):
		return set, nil, errors.New("the key set is served with no-store: every verification would ask for it")
	case a.header.Get("Age") != "":
		return set, nil, nil
	}
	return set, a.body, nil
}

// discovery checks the document by which Providers find the key set.
func (r *round) discovery(ctx context.Context) error {
	a, err := r.get(ctx, r.way, jwks.DiscoveryPath)
	if err != nil {
		return fmt.Errorf("%s: %w", jwks.DiscoveryPath, err)
	}
	var doc struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if json.Unmarshal(a.body, &doc) != nil || doc.Issuer != r.cfg.Issuer || doc.Keys != r.cfg.Issuer+jwks.WellKnownPath {
		return fmt.Errorf("%s does not name this issuer and its key set", jwks.DiscoveryPath)
	}
	return nil
}

// get gets one of the issuer's documents.
func (r *round) get(ctx context.Context, w *way, path string) (answer, error) {
	a, err := w.do(ctx, http.MethodGet, r.cfg.Issuer+path, http.Header{"Cache-Control": {"no-cache"}}, nil)
	if err != nil {
		return a, err
	}
	r.answered.Store(true)
	if a.status != http.StatusOK {
		return a, fmt.Errorf("answered %v", a)
	}
	if !a.isJSON() {
		return a, errors.New("answered with content that is not JSON")
	}
	return a, nil
}

// atOnce is how many replicas are asked at the same time.
const atOnce = 16

// everyReplica calls ask for each address that the names of the replicas have now. If
// some names do not resolve, it does so for those of the others.
func (r *round) everyReplica(ctx context.Context, ask func(address string, w *way)) error {
	names, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	var all []target // all are looked up before one is asked: that takes as long as replicas do
	var unknown error
	for _, name := range r.replicas {
		each, err := name.each(names, r.cfg.Lookup)
		unknown = errors.Join(unknown, err)
		all = append(all, each...)
	}
	var asked errgroup.Group
	asked.SetLimit(atOnce)
	for _, t := range all {
		asked.Go(func() error { ask(t.address, newWay(t, r.cfg.RootCAs, r.cfg.Timeout)); return nil })
	}
	return errors.Join(unknown, asked.Wait())
}

// agreement compares the key sets of all replicas each time that it is called. DNS
// names a replica that has ended for a while, and while replicas are replaced it is
// another one every time. So one without an answer fails only if it is still named,
// and has had none since the first time.
func (r *round) agreement() func(ctx context.Context, public []byte) (string, error) {
	var down map[string]bool // by address; nil until the first time
	return func(ctx context.Context, public []byte) (string, error) {
		type served struct {
			address  string
			set      jwks.Set
			document []byte
			err      error
		}
		var mu sync.Mutex
		var all []served
		if err := r.everyReplica(ctx, func(address string, w *way) {
			set, document, err := r.fetchSet(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, served{address, set, document, err})
		}); err != nil {
			return "", err
		}
		slices.SortFunc(all, func(a, b served) int { return strings.Compare(a.address, b.address) })
		still := map[string]bool{}
		for _, s := range all {
			still[s.address] = s.err != nil && (down == nil || down[s.address])
		}
		down = still
		var ended string // the last of those that do not answer any more
		reference, whose, agree := public, "the public URL", 0
		for _, s := range all {
			switch {
			case s.err != nil && !down[s.address]:
				ended = s.address
				continue
			case s.err != nil:
				return "", fmt.Errorf("replica %s: %w", s.address, s.err)
			case s.document == nil:
				return "", fmt.Errorf("replica %s: %w", s.address, errCached)
			case reference == nil:
				reference, whose = s.document, "replica "+s.address
			case !bytes.Equal(s.document, reference):
				return "", fmt.Errorf("replica %s serves another key set (%s) than %s (%s)", s.address, kids(s.document), whose, kids(reference))
			}
			if _, ok := keyOf(s.set, r.kid); !ok {
				return "", fmt.Errorf("key %s signs and is not in the key set of replica %s", r.kid, s.address)
			}
			agree++
		}
		if agree == 0 {
			return "", errors.New("no replica answers")
		}
		seen := fmt.Sprintf("%d %s", agree, plural(agree, "replica agrees", "replicas agree"))
		if public == nil {
			seen += "; the public URL was not compared, for a cache or nobody answers there"
		} else {
			seen += " with the public URL"
		}
		if ended != "" {
			seen += fmt.Sprintf("; %s has just stopped answering", ended)
		}
		return seen, nil
	}
}

// keyOf finds a key by its id. Any will do for no id.
func keyOf(set jwks.Set, kid string) (jwks.Key, bool) {
	for _, k := range set.Keys {
		if k.ID == kid || kid == "" {
			return k, true
		}
	}
	return jwks.Key{}, false
}

// kids names the keys of a set: at most jwks.MaxKeys.
func kids(document []byte) string {
	set, err := jwks.Parse(document)
	if err != nil {
		return "unreadable"
	}
	var ids []string
	for _, k := range set.Keys {
		ids = append(ids, fmt.Sprintf("%.64s", k.ID)) // ours have 43 characters
	}
	return strings.Join(ids, " ")
}

// onSchedule compares the published set and the key that signed with the schedule.
func (r *round) onSchedule(ctx context.Context, public []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	s, err := r.cfg.Schedule(ctx)
	if err != nil {
		return "", err
	}
	var due []string
	for _, k := range s.Keys {
		if k.State == "published" || k.State == "signing" || k.State == "retiring" {
			due = append(due, k.ID)
		}
	}
	if got := kids(s.JWKS); got != strings.Join(due, " ") {
		return "", fmt.Errorf("by the schedule the keys %s are published, and the key set has %s", strings.Join(due, " "), got)
	}
	if public != nil && !bytes.Equal(public, s.JWKS) {
		return "", fmt.Errorf("the public URL serves another key set (%s) than the schedule says (%s)", kids(public), kids(s.JWKS))
	}
	for replica, revision := range s.Replicas {
		if revision != s.Revision {
			return "", fmt.Errorf("replica %s serves revision %d of the schedule, and the newest is %d", replica, revision, s.Revision)
		}
	}
	if err := r.mayHaveSigned(s); err != nil {
		return "", err
	}
	seen := fmt.Sprintf("revision %d at %d %s", s.Revision, len(s.Replicas), plural(len(s.Replicas), "replica", "replicas"))
	if public == nil {
		seen += "; the public URL was not compared, for a cache or nobody answers there"
	}
	return seen, nil
}

// clocksApart is how far the clocks of replicas may be apart, both ways.
const clocksApart = 10 * time.Second

// mayHaveSigned checks that the key of the round's token was to sign then.
func (r *round) mayHaveSigned(s Schedule) error {
	if r.kid == "" {
		return nil
	}
	for _, k := range s.Keys {
		if k.ID != r.kid {
			continue
		}
		slack := clocksApart
		if k.State == "revoked" { // until every replica has heard of it
			slack = r.cfg.Settle
		}
		if k.SignAt.IsZero() || r.sent.Add(slack).Before(k.SignAt) || !k.RetireAt.IsZero() && r.sent.Add(-slack).After(k.RetireAt) {
			return fmt.Errorf("key %s signed, which by the schedule was not to (%s)", r.kid, k.State)
		}
		return nil
	}
	return fmt.Errorf("key %s signed, which is not in the schedule", r.kid)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
