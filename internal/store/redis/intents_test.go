package redis

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// Wherever replicas are cut off in the middle of their acts, every act that was
// done is in the log, and what the log says without a doubt was done.
func TestNoActWithoutItsEntry(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	var offset atomicDuration
	observer := unmarked(t, Options{Addrs: []string{r.Addr()}, Offset: offset.load})
	type replica struct {
		*Store
		proxy *servers.Proxy
	}
	var replicas []replica
	for range 2 {
		p := servers.NewProxy(t, r.Addr())
		replicas = append(replicas, replica{unmarked(t, Options{Addrs: []string{p.Addr()}, Offset: offset.load}), p})
	}
	refusal := errors.New("refused for a reason of its own")

	rapid.Check(t, func(rt *rapid.T) {
		r.Wipe()
		if err := observer.Mark(t.Context(), testID); err != nil {
			rt.Fatal(err)
		}
		acted := make(map[string]bool)   // by target
		certain := make(map[string]bool) // its caller was told that it was done
		refused := make(map[string]bool)
		slow := make(map[string]bool)
		n := rapid.IntRange(1, 12).Draw(rt, "acts")
		for i := range n {
			at := rapid.SampledFrom(replicas).Draw(rt, "replica")
			target := fmt.Sprint("act", i)
			kind := rapid.SampledFrom([]string{
				"whole", "cut before", "cut after the intent", "cut after the act", "cut while refused", "refused", "not found", "unknown", "slow", "kill", "append",
			}).Draw(rt, "kind")
			at.proxy.Heal()
			do := func(f func() error) func(context.Context) error {
				return func(context.Context) error { return f() }
			}
			act := func(f func() error) error { return at.act(t.Context(), acting("act", target), do(f)) }
			var err error
			switch kind {
			case "whole":
				err = act(func() error { acted[target] = true; return nil })
			case "cut before":
				at.proxy.Cut()
				err = act(func() error { acted[target] = true; return nil })
			case "cut after the intent":
				err = act(func() error { at.proxy.Cut(); return context.Canceled })
			case "cut after the act":
				err = act(func() error { acted[target] = true; at.proxy.Cut(); return nil })
			case "cut while refused":
				err = act(func() error { at.proxy.Cut(); return undone(refusal) })
			case "refused":
				refused[target] = true
				if err = act(func() error { return undone(refusal) }); err != refusal {
					rt.Fatalf("a refused act: %v", err)
				}
			case "not found":
				refused[target] = true
				if err = act(func() error { return signer.ErrNotFound }); err != signer.ErrNotFound {
					rt.Fatalf("an act on nothing: %v", err)
				}
			case "unknown": // the answer of the act was lost
				err = act(func() error {
					acted[target] = rapid.Bool().Draw(rt, "was done")
					return errors.New("connection reset")
				})
			case "slow": // another one finishes its intent meanwhile
				slow[target] = true
				err = act(func() error {
					offset.add(intentPatience + time.Second)
					if err := observer.finishIntents(t.Context()); err != nil {
						return err
					}
					acted[target] = true
					return nil
				})
			case "kill":
				_, _, err = at.Kill(t.Context(), killAll(target), 0, acting("act", target))
				acted[target] = err == nil
			case "append":
				err = at.AppendAudit(t.Context(), acting("act", target))
				acted[target] = err == nil
			}
			if err == nil {
				certain[target] = true
			}
			if kind == "whole" && err != nil || kind == "slow" && err != nil || kind == "kill" && err != nil {
				rt.Fatalf("%s: %v", kind, err)
			}
			if rapid.Bool().Draw(rt, "sweep") {
				if err := observer.finishIntents(t.Context()); err != nil {
					rt.Fatal(err)
				}
			}
		}
		offset.add(intentPatience + time.Second)
		if err := observer.finishIntents(t.Context()); err != nil {
			rt.Fatal(err)
		}
		if left := intents(t, r); left != 0 {
			rt.Fatalf("%d intents are left", left)
		}
		entries := make(map[string][]audit.Entry)
		for _, e := range verifiedLog(t, observer) {
			entries[e.Target] = append(entries[e.Target], e)
		}
		for i := range n {
			target := fmt.Sprint("act", i)
			var sure, unsure int
			for _, e := range entries[target] {
				if e.Detail["outcome"] == "interrupted" {
					unsure++
				} else {
					sure++
				}
			}
			switch {
			case acted[target] && sure+unsure == 0:
				rt.Errorf("%s was done and is not in the log", target)
			case !acted[target] && sure > 0:
				rt.Errorf("%s was not done, and the log says that it was", target)
			case refused[target] && unsure > 0:
				rt.Errorf("%s was refused and is in the log", target)
			case certain[target] && sure != 1:
				rt.Errorf("%s was acknowledged and is in the log %d times", target, sure)
			case sure+unsure > 1 && !slow[target]:
				rt.Errorf("%s is in the log %d times", target, sure+unsure)
			}
		}
	})
}

// However many replicas find an intent, its entry is written once.
func TestManyFinishOneIntent(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	const n = 20
	for i := range n {
		r.Do("HSET", "pact:{g}:intents", fmt.Sprint(i), fmt.Sprintf(`12 done {"actor":"tester","action":"act","target":"%d"}`, i))
	}
	errs := make(chan error)
	for range 6 {
		other := unmarked(t, onServer(r))
		go func() { errs <- other.finishIntents(t.Context()) }()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if log := verifiedLog(t, s); len(log) != n {
		t.Fatalf("%d intents gave %d entries", n, len(log))
	}
}

// An intent that cannot be read is not silently dropped.
func TestUnreadableIntent(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	r.Do("HSET", "pact:{g}:intents", "x", "garbage", "y", "12 act {")
	if err := s.finishIntents(t.Context()); err != nil {
		t.Fatal(err)
	}
	log := verifiedLog(t, s)
	if len(log) != 2 || log[0].Action != "unreadable" || log[1].Detail["outcome"] != "interrupted" || intents(t, r) != 0 {
		t.Fatalf("the log is %+v", log)
	}
}

// Entries of callers that leave, or of a batch with many, are appended once each.
func TestAppendInNumbers(t *testing.T) {
	s := marked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	const n = 3 * maxAuditBatch
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- s.AppendAudit(t.Context(), acting("many", fmt.Sprint(i))) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	log := verifiedLog(t, s)
	seen := make(map[string]bool)
	for _, e := range log {
		seen[e.Target] = true
	}
	if len(log) != n || len(seen) != n {
		t.Fatalf("%d entries of %d targets, want %d", len(log), len(seen), n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.AppendAudit(ctx, acting("left", "")); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
