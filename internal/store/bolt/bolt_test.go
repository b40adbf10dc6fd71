package bolt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/storetest"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

const testIssuer = "https://pa.example.com"

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Backend {
		c, path := newClock(), filepath.Join(t.TempDir(), "signer.db")
		return storetest.Backend{
			Open: func(t testing.TB) storetest.Store {
				s, err := Open(path, Options{Now: c.now})
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				return s
			},
			Advance: c.advance,
		}
	})
}

func open(t testing.TB, path string, opts Options) *Store {
	t.Helper()
	s, err := Open(path, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func enroll(t testing.TB, s *Store, thumbprint string) {
	t.Helper()
	_, err := s.Enroll(context.Background(), signer.Enrolment{
		Device: signer.Device{Issuer: testIssuer, Thumbprint: thumbprint, Subject: "pa_" + thumbprint, Point: make([]byte, 64)},
		JTI:    signer.Hash([]byte(fmt.Sprintf("%32s", thumbprint))),
		Epoch:  epochOf(t, s),
	})
	if err != nil {
		t.Fatalf("enrol: %v", err)
	}
}

func epochOf(t testing.TB, s *Store) uint64 {
	t.Helper()
	state, err := s.State(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return state.Epoch
}

func deviceCall(thumbprint string, n int) signer.Authorization {
	return signer.Authorization{
		Issuer: testIssuer, Kind: signer.DeviceCaller, Thumbprint: thumbprint,
		JTI: signer.Hash([]byte(fmt.Sprintf("%032d", n))), Sign: true,
	}
}

func TestOpenIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signer.db")
	open(t, path, Options{})
	_, err := Open(path, Options{Lock: 10 * time.Millisecond})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "another signer uses") || !strings.Contains(err.Error(), path) {
		t.Fatalf("a second open gave %v", err)
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signer.db")
	s := open(t, path, Options{})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v, want 0600", info.Mode(), err)
	}
	s.Close()
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Fatalf("a file that the group can read: %v", err)
	}
	if _, err := Open(filepath.Dir(path), Options{}); err == nil {
		t.Fatal("a directory was opened")
	}
}

func TestFormat(t *testing.T) {
	for name, prepare := range map[string]func(tx *bbolt.Tx) error{
		"newer": func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(metaBucket)
			if err != nil {
				return err
			}
			return putJSON(b, formatKey, marker{format + 1, minReader})
		},
		"no marker": func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket(metaBucket)
			return err
		},
		"something else": func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("recipes"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "signer.db")
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Update(prepare); err != nil {
				t.Fatal(err)
			}
			db.Close()
			if _, err := Open(path, Options{}); !errors.Is(err, ErrFormat) {
				t.Fatalf("got %v, want ErrFormat", err)
			}
		})
	}
}

// A wall clock that is set back, while the store runs or between two starts,
// never makes a jti usable again.
func TestJTIClockSetBack(t *testing.T) {
	c, path := newClock(), filepath.Join(t.TempDir(), "signer.db")
	s := open(t, path, Options{Now: c.now})
	enroll(t, s, "thumb")
	call := deviceCall("thumb", 1)
	wantReplayed := func(when string) {
		t.Helper()
		_, err := s.Authorize(t.Context(), call)
		var r *signer.RefusedError
		if !errors.As(err, &r) || r.Why != "replayed" {
			t.Fatalf("%s: %v, want it replayed", when, err)
		}
	}
	if _, err := s.Authorize(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	c.advance(-time.Hour)
	wantReplayed("an hour back")
	s.Close()
	s = open(t, path, Options{Now: c.now})
	wantReplayed("an hour back and opened again")
	c.advance(239 * time.Second)
	wantReplayed("239 s later")
	c.advance(time.Second)
	if _, err := s.Authorize(t.Context(), call); err != nil {
		t.Fatalf("240 s later: %v", err)
	}
}

// The log of jtis does not outgrow its window.
func TestJTISweep(t *testing.T) {
	c := newClock()
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{Now: c.now})
	enroll(t, s, "thumb")
	for i := range 200 {
		if _, err := s.Authorize(t.Context(), deviceCall("thumb", i)); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(time.Hour)
	for i := range 5 {
		if _, err := s.Authorize(t.Context(), deviceCall("thumb", 1000+i)); err != nil {
			t.Fatal(err)
		}
	}
	records := 0
	s.view(t.Context(), func(tx *bbolt.Tx) error {
		return tx.Bucket(jtisBucket).ForEach(func(_, _ []byte) error { records++; return nil })
	})
	if records != 5 || len(s.seen.set) != 5 {
		t.Fatalf("%d records and %d jtis are left, want 5", records, len(s.seen.set))
	}
}

// blockWriter occupies the writer until the returned function is called.
func blockWriter(s *Store) (release func()) {
	entered, gate := make(chan struct{}), make(chan struct{})
	go s.writer.do(context.Background(), func(*batch) error {
		close(entered)
		<-gate
		return nil
	})
	<-entered
	return func() { close(gate) }
}

func TestQueueIsBounded(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{Queue: 3})
	enroll(t, s, "thumb")
	release := blockWriter(s)
	results := make(chan error, 3)
	for i := range 3 {
		go func() {
			_, err := s.Authorize(t.Context(), deviceCall("thumb", i))
			results <- err
		}()
	}
	for len(s.writer.queue) < 3 {
		runtime.Gosched() // they are on their way
	}
	if _, err := s.Authorize(t.Context(), deviceCall("thumb", 10)); !errors.Is(err, ErrBusy) {
		t.Fatalf("a call above the bound: %v, want ErrBusy", err)
	}
	release()
	for range 3 {
		if err := <-results; err != nil {
			t.Fatalf("a call that waited: %v", err)
		}
	}
}

func TestCallerWhoLeavesIsDropped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	enroll(t, s, "thumb")
	release := blockWriter(s)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := s.Authorize(ctx, deviceCall("thumb", 1))
		result <- err
	}()
	for len(s.writer.queue) < 1 {
		runtime.Gosched() // it is on its way
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	release()
	if _, err := s.Authorize(t.Context(), deviceCall("thumb", 1)); err != nil {
		t.Fatalf("the jti of a call that was dropped: %v", err)
	}
}

// One call's failure to write fails its batch, and a refusal only itself.
func TestBatchOutcomes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	enroll(t, s, "thumb")
	run := func(first error) (error, error) {
		release := blockWriter(s)
		one, two := make(chan error, 1), make(chan error, 1)
		go func() { one <- s.writer.do(t.Context(), func(*batch) error { return first }) }()
		for len(s.writer.queue) < 1 {
			runtime.Gosched() // it is on its way
		}
		go func() {
			_, err := s.Authorize(t.Context(), deviceCall("thumb", int(time.Now().UnixNano())))
			two <- err
		}()
		for len(s.writer.queue) < 2 {
			runtime.Gosched() // it is on its way
		}
		release()
		return <-one, <-two
	}
	no := errors.New("no")
	if a, b := run(refusal{no}); a != no || b != nil {
		t.Fatalf("a refusal and its neighbour: %v and %v", a, b)
	}
	if a, b := run(no); !errors.Is(a, no) || !errors.Is(b, no) {
		t.Fatalf("a failure and its neighbour: %v and %v", a, b)
	}
}

func TestClosed(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	enroll(t, s, "thumb")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"write": func() error { _, err := s.Authorize(t.Context(), deviceCall("thumb", 1)); return err }(),
		"read":  func() error { _, err := s.Device(t.Context(), testIssuer, "thumb"); return err }(),
		"act":   s.RemoveAudience(t.Context(), testIssuer, "o", audit.Entry{}),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatalf("close again: %v", err)
	}
}

func TestMirrorAndFleet(t *testing.T) {
	c, path := newClock(), filepath.Join(t.TempDir(), "signer.db")
	s := open(t, path, Options{Now: c.now})
	ctx := t.Context()
	changed := s.Changed()
	for _, m := range []struct {
		revision uint64
		doc      string
	}{{3, "three"}, {2, "two"}, {3, "another three"}, {4, "four"}} {
		if err := s.Mirror(ctx, testIssuer, m.revision, []byte(m.doc)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-changed:
	default:
		t.Fatal("a newer schedule was not announced")
	}
	s.Close()
	s = open(t, path, Options{Now: c.now})
	if rev, doc, err := s.Mirrored(ctx, testIssuer); rev != 4 || string(doc) != "four" || err != nil {
		t.Fatalf("mirrored %d %q %v", rev, doc, err)
	}
	g, err := s.Beat(ctx, killswitch.Beat{Replica: "a", Revisions: map[string]uint64{testIssuer: 4}})
	if err != nil || g.Revisions[testIssuer] != 4 {
		t.Fatalf("granted %+v, %v", g, err)
	}
	if _, err := s.Beat(ctx, killswitch.Beat{Replica: "b", Revisions: map[string]uint64{testIssuer: 3}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Beat(ctx, killswitch.Beat{Replica: "c"}); err != nil {
		t.Fatal(err)
	}
	confirmed, missing, err := s.Serving(ctx, testIssuer, 4)
	if fmt.Sprint(confirmed, missing, err) != "[a] [b c] <nil>" {
		t.Fatalf("serving: %v %v %v", confirmed, missing, err)
	}
	c.advance(time.Minute)
	confirmed, missing, err = s.Serving(ctx, testIssuer, 4)
	if len(confirmed)+len(missing) != 0 || err != nil {
		t.Fatalf("a minute later: %v %v %v", confirmed, missing, err)
	}
	if rev, _, err := s.Mirrored(ctx, "https://nobody.example"); rev != 0 || err != nil {
		t.Fatalf("of nobody: %d %v", rev, err)
	}
}

// What was acknowledged is there after a process died without a word: whatever
// the file holds between two transactions opens.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "signer.db")
	s := open(t, path, Options{})
	for i := range 20 {
		thumbprint := fmt.Sprint("thumb ", i)
		enroll(t, s, thumbprint)
		call := deviceCall(thumbprint, i)
		call.Epoch = epochOf(t, s)
		if _, err := s.Authorize(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Kill(t.Context(), killswitch.Entry{ID: fmt.Sprint(i), Scope: killswitch.Scope{Kind: killswitch.Device, Issuer: testIssuer, Value: thumbprint}}, 0, audit.Entry{Action: "kill"}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(dir, fmt.Sprint("copy ", i))
		if err := os.WriteFile(copied, data, 0o600); err != nil {
			t.Fatal(err)
		}
		after := open(t, copied, Options{})
		for j := range i + 1 {
			call := deviceCall(fmt.Sprint("thumb ", j), j)
			call.Epoch = uint64(i + 1)
			_, err := after.Authorize(t.Context(), call)
			var r *signer.RefusedError
			if !errors.As(err, &r) || r.Why != "replayed" {
				t.Fatalf("after crash %d device %d: %v, want it replayed", i, j, err)
			}
		}
		state, err := after.State(t.Context())
		if err != nil || len(state.Live()) != i+1 {
			t.Fatalf("after crash %d: %+v, %v", i, state, err)
		}
		after.Close()
	}
}

// noHighWater is custody that never has anything to say.
type noHighWater struct{}

func (noHighWater) Load(context.Context) (killswitch.State, error) { return killswitch.State{}, nil }
func (noHighWater) Save(context.Context, killswitch.State) error   { return nil }

// A kill is announced, enforced and confirmed by every replica on the store.
func TestKillOverStore(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var guards []*killswitch.Guard
	for i := range 3 {
		g := killswitch.NewGuard(killswitch.GuardConfig{Store: s, HighWater: noHighWater{}, Replica: fmt.Sprint(i)})
		if err := g.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { g.Run(ctx) })
		guards = append(guards, g)
	}
	sw := killswitch.NewSwitch(killswitch.SwitchConfig{Store: s, HighWater: noHighWater{}})
	res, err := sw.Kill(ctx, killswitch.Entry{Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "drill", Actor: "tester"})
	if err != nil || len(res.Replicas) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	b, err := sw.Wait(ctx, res.Entry.Epoch, nil)
	if err != nil || !b.Effective || len(b.Confirmed) != 3 {
		t.Fatalf("%+v, %v", b, err)
	}
	for _, g := range guards {
		var killed *killswitch.KilledError
		if _, err := g.Check(killswitch.Target{}); !errors.As(err, &killed) || killed.Entry != res.Entry.ID {
			t.Fatalf("check gave %v", err)
		}
	}
}

// The limiter forgets callers whose bucket is full.
func TestLimiterEvicts(t *testing.T) {
	now := time.Duration(0)
	l := newLimiter(func() time.Duration { return now })
	limit := signer.Limit{Rate: 2, Burst: 120}
	for i := range 200_000 {
		now += time.Millisecond
		if _, ok := l.take(caller{signer.DeviceCaller, testIssuer, fmt.Sprint(i)}, limit); !ok {
			t.Fatal("a first call was limited")
		}
	}
	kept := 0
	for i := range l.shards {
		kept += len(l.shards[i].full)
	}
	// A bucket is full again after half a second, which is 500 callers.
	if bound := len(l.shards) * 2 * minSweep; kept > bound {
		t.Fatalf("%d callers are remembered, want at most %d", kept, bound)
	}
}

// What is stored of a secret is a hash.
func TestCredentialRecordHoldsHash(t *testing.T) {
	b, err := json.Marshal(signer.Credential{Hash: signer.Hash{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	var c signer.Credential
	if err := json.Unmarshal(b, &c); err != nil || c.Hash != (signer.Hash{1, 2, 3}) {
		t.Fatalf("a hash does not survive JSON: %v, %v", c.Hash, err)
	}
}

func BenchmarkAuthorizeCredential(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "signer.db"), Options{})
	err := s.update(b.Context(), func(tx *bbolt.Tx) error {
		for i := range 1000 {
			c := signer.Credential{Issuer: testIssuer, ID: fmt.Sprint(i), Name: fmt.Sprint(i), Subject: "pa_x", Hash: signer.Hash([]byte(fmt.Sprintf("%032d", i)))}
			if err := s.putCredential(tx, signer.Credential{}, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	a := signer.Authorization{Issuer: testIssuer, Kind: signer.CredentialCaller, Secret: signer.Hash([]byte(fmt.Sprintf("%032d", 7))), Limit: signer.Limit{Rate: 1e9, Burst: 1e6}}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Authorize(context.Background(), a); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAuthorizeDevice(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(callers, " callers"), func(b *testing.B) {
			s := open(b, filepath.Join(b.TempDir(), "signer.db"), Options{})
			enroll(b, s, "thumb")
			var n int
			var mu sync.Mutex
			b.ReportAllocs()
			b.SetParallelism((callers + 1) / 2)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					mu.Lock()
					n++
					a := deviceCall("thumb", n)
					mu.Unlock()
					if _, err := s.Authorize(context.Background(), a); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
