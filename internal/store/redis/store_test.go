package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// every is what is asked of a store in its place, each way that a caller can.
func every(s *Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"device's sign":     func(ctx context.Context) error { _, err := s.Authorize(ctx, byDevice(1, rand.Int())); return err },
		"credential's sign": func(ctx context.Context) error { _, err := s.Authorize(ctx, byCredential(1)); return err },
		"enrolment": func(ctx context.Context) error {
			e := enrolment(1)
			e.JTI = nth("jti", rand.Int())
			_, err := s.Enroll(ctx, e)
			return err
		},
		"enrolment with a token": func(ctx context.Context) error {
			e := enrolment(1)
			e.NeedToken, e.Token, e.JTI = true, nth("token", 1), nth("jti", rand.Int())
			_, err := s.Enroll(ctx, e)
			return err
		},
		"device":     func(ctx context.Context) error { _, err := s.Device(ctx, testIssuer, thumb(1)); return err },
		"devices":    func(ctx context.Context) error { _, _, err := s.Devices(ctx, testIssuer, signer.Page{}); return err },
		"credential": func(ctx context.Context) error { _, err := s.Credential(ctx, testIssuer, "id1"); return err },
		"audiences":  func(ctx context.Context) error { _, err := s.Audiences(ctx, testIssuer); return err },
		"counts":     func(ctx context.Context) error { _, _, err := s.Counts(ctx, testIssuer); return err },
		"invalidation": func(ctx context.Context) error {
			_, err := s.Invalidate(ctx, testIssuer, thumb(2), "r", acting("invalidate", "2"))
			return err
		},
		"enforce": func(ctx context.Context) error { return s.Enforce(ctx, 0) },
	}
}

func populate(t testing.TB, s *Store) {
	t.Helper()
	enroll(t, s, 1)
	putCredential(t, s, 1)
	err := s.PutEnrollmentToken(t.Context(), signer.EnrollmentToken{
		Issuer: testIssuer, ID: "token", Hash: nth("token", 1), ExpiresAt: time.Now().Add(time.Hour),
	}, acting("create token", "token"))
	if err != nil {
		t.Fatal(err)
	}
	for what, ask := range every(s) {
		if err := ask(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Without the right marker nothing is known: never is a caller called unknown.
func TestMarkers(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	populate(t, s)
	want := func(when string, target error) {
		t.Helper()
		for what, ask := range every(s) {
			if err := ask(t.Context()); !errors.Is(err, target) {
				t.Errorf("%s: %s: got %v, want %v", when, what, err, target)
			}
		}
	}
	identity := func() Identity {
		t.Helper()
		id, err := s.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if id := identity(); id != (Identity{ID: testID, Tags: tags, Records: true, Format: format, MinReader: minReader}) {
		t.Errorf("a marked store says %+v of itself", id)
	}

	s.Expect("another")
	want("expecting another", ErrForeign)
	s.Expect("")
	want("expecting none", ErrUnmarked)
	s.Expect(testID)
	want("expecting it", nil)

	for _, slot := range append([]string{globalSlot}, tagNames[:]...) {
		server.Do("HSET", "pact:{"+slot+"}:m", "minReader", strconv.Itoa(format+1))
	}
	want("of a newer format", ErrFormat)
	if err := s.Mark(t.Context(), testID); !errors.Is(err, ErrFormat) {
		t.Errorf("marking over a newer format: %v", err)
	}
	for _, slot := range append([]string{globalSlot}, tagNames[:]...) {
		server.Do("HSET", "pact:{"+slot+"}:m", "minReader", strconv.Itoa(minReader))
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	want("marked again", nil)

	tag := tagOf(testIssuer, thumb(1))
	server.Do("DEL", "pact:{"+tag+"}:m")
	if _, err := s.Authorize(t.Context(), byDevice(1, rand.Int())); !errors.Is(err, ErrUnmarked) {
		t.Errorf("a tag without a marker: %v", err)
	}
	if id := identity(); id.Tags != tags-1 || id.ID != testID {
		t.Errorf("with one tag unmarked a store says %+v of itself", id)
	}

	server.Wipe()
	want("wiped", ErrUnmarked)
	if id := identity(); id != (Identity{}) {
		t.Errorf("an empty store says %+v of itself", id)
	}
	server.Do("SET", "pact:{b00}:x", "1")
	if id := identity(); id != (Identity{Records: true}) {
		t.Errorf("an unmarked store with a record says %+v of itself", id)
	}
	server.Do("DEL", "pact:{b00}:x")
	server.Do("SET", "pactum", "1")
	if id := identity(); id != (Identity{}) {
		t.Errorf("with another one's key a store says %+v of itself", id)
	}
}

// A server that takes no writes is not asked to read either: it may be behind.
func TestDemotedMaster(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	populate(t, s)
	server.Do("REPLICAOF", "127.0.0.1", "1")
	for what, ask := range every(s) {
		err := ask(t.Context())
		var refused *signer.RefusedError
		if err == nil || errors.As(err, &refused) || errors.Is(err, signer.ErrNotFound) {
			t.Errorf("%s on a copy: %v", what, err)
		}
	}
	server.Do("REPLICAOF", "NO", "ONE")
	for what, ask := range every(s) {
		if err := ask(t.Context()); err != nil {
			t.Errorf("%s on a master again: %v", what, err)
		}
	}
}

// Nothing hangs while the server does, and all goes on by itself afterwards.
func TestNothingHangs(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	proxy := servers.NewProxy(t, server.Addr())
	populate(t, marked(t, onServer(server)))
	s := unmarked(t, Options{Addrs: []string{proxy.Addr()}, timeouts: defaultTimeouts})
	// What is acknowledged may wait in the server's memory while a disk is slow.
	server.Do("CONFIG", "SET", "appendfsync", "always")
	server.Do("SET", "written", "with all before it")
	for name, c := range map[string]struct{ fail, heal func() }{
		"paused": {server.Pause, server.Resume},
		"killed": {server.Kill, server.Start},
		"cut":    {proxy.Cut, proxy.Heal},
		"hung":   {proxy.Hang, proxy.Heal},
	} {
		t.Run(name, func(t *testing.T) {
			c.fail()
			var asked sync.WaitGroup
			for range 20 { // more than there are connections and lanes
				for what, ask := range every(s) {
					asked.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
						defer cancel()
						began := time.Now()
						err := ask(ctx)
						var refused *signer.RefusedError
						if err == nil || errors.As(err, &refused) || errors.Is(err, signer.ErrNotFound) {
							t.Errorf("%s: %v", what, err)
						}
						if took := time.Since(began); took > 3*time.Second {
							t.Errorf("%s: with a deadline of 0.5 s it took %v", what, took)
						}
					})
				}
			}
			asked.Wait()
			for what, ask := range every(s) { // nobody gives up: the store does
				asked.Go(func() {
					began := time.Now()
					if err := ask(context.Background()); err == nil {
						t.Errorf("%s went well", what)
					}
					if took := time.Since(began); took > 10*time.Second {
						t.Errorf("%s: without a deadline it took %v", what, took)
					}
				})
			}
			asked.Wait()
			c.heal()
			for what, ask := range every(s) {
				eventually(t, what+" afterwards", func() error { return ask(t.Context()) })
			}
		})
	}
}

// A caller that leaves is let go at once, and does not hold the others up.
func TestAuthorizeLeavesWithItsContext(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	populate(t, s)
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.Authorize(ctx, byCredential(1))
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left got %v", err)
	}
	server.Resume()
	eventually(t, "a sign afterwards", func() error {
		_, err := s.Authorize(t.Context(), byCredential(1))
		return err
	})
}

// A script whose answer was lost is not sent again: a jti is used up once.
func TestALostAnswerIsAnError(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	proxy := servers.NewProxy(t, server.Addr())
	s := marked(t, Options{Addrs: []string{proxy.Addr()}})
	populate(t, s)
	for i := range 20 {
		a := byDevice(1, 1e6+i)
		before, _ := commands(t, server)
		proxy.Mute()
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.Authorize(ctx, a)
			left <- err
		}()
		eventually(t, "the script", func() error {
			if after, _ := commands(t, server); after == before {
				return errors.New("did not run yet")
			}
			return nil
		})
		leave()
		err := <-left
		proxy.Heal()
		var refused *signer.RefusedError
		if err == nil || errors.As(err, &refused) {
			t.Fatalf("a call whose answer was lost got %v", err)
		}
		if _, err := s.Authorize(t.Context(), a); !errors.As(err, &refused) || refused.Why != "replayed" {
			t.Fatalf("its jti again: %v", err)
		}
		if after, _ := commands(t, server); after-before != 2 {
			t.Fatalf("two calls ran %d scripts", after-before)
		}
	}
}

// No verb prints a password, of the options or of the store.
func TestPasswordsDoNotPrint(t *testing.T) {
	o := Options{Addrs: []string{"127.0.0.1:1"}, Username: "signer", Password: "hunter2", SentinelPassword: "hunter2"}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		for _, v := range []any{o, &o, s, *s.opts, struct{ O Options }{o}} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "hunter2") || strings.Contains(text, "68756e74657232") {
				t.Errorf("%s of %T prints %s", verb, v, text)
			}
		}
	}
	_, err = s.Authorize(t.Context(), byCredential(1))
	s.Expect("x")
	_, err2 := s.Authorize(t.Context(), byCredential(1))
	if text := fmt.Sprint(err, err2); strings.Contains(text, "hunter2") || err2 == nil {
		t.Errorf("errors are %s", text)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "address"},
		{Options{Addrs: []string{"a:1", "b:1"}}, "one address"},
		{Options{Mode: Sentinel, Addrs: []string{"a:1"}}, "master's name"},
		{Options{Mode: "ring", Addrs: []string{"a:1"}}, "unknown mode"},
		{Options{Addrs: []string{"a:1"}, Prefix: "a{b}"}, "braces"},
	} {
		if s, err := Open(c.o); err == nil {
			s.Close()
			t.Errorf("opened %v", c.o)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("open %v: %v, want it to say %q", c.o, err, c.want)
		}
	}
}

// TLS, and a user that may only what the store needs.
func TestTLSAndACL(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{TLS: true, Args: append([]string{"--user"}, strings.Fields(
		"signer on >hunter2 ~pact:* &pact:* +@all -@dangerous -@admin +info +config|get")...)})
	o := Options{Addrs: []string{server.Addr()}, TLS: server.TLSConfig(), Username: "signer", Password: "hunter2"}
	populate(t, marked(t, o))
	o.Password = "wrong"
	s := unmarked(t, o)
	if _, err := s.Authorize(t.Context(), byCredential(1)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("with a wrong password: %v", err)
	}
	o.TLS, o.Password = nil, "hunter2"
	if _, err := unmarked(t, o).Authorize(t.Context(), byCredential(1)); err == nil {
		t.Error("without TLS it went well")
	}
}

// A listing gives every device once, in order, whatever the pages' size.
func TestListing(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	const n = 700
	var want []string
	var enrolled sync.WaitGroup
	for i := range n {
		want = append(want, thumb(i))
		enrolled.Go(func() { enroll(t, s, i) })
	}
	enrolled.Wait()
	slices.Sort(want)
	for _, size := range []int{1, 7, 64, 100, n - 1, n, n + 1, 1000} {
		var got []string
		for after := ""; ; {
			list, next, err := s.Devices(t.Context(), testIssuer, signer.Page{Size: size, After: after})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range list {
				got = append(got, d.Thumbprint)
			}
			if after = next; next == "" || size == 1 && len(got) == 20 {
				break
			}
		}
		if !slices.Equal(got, want[:len(got)]) || size > 1 && len(got) != n {
			t.Fatalf("pages of %d give %d devices, or not in order", size, len(got))
		}
	}
}

// What an index holds without a record, as a half-written slot may, neither ends a
// listing nor begins it anew, and keeps no device out of it.
func TestListingWithoutRecords(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	const n = 40
	var want []string
	for i := range n {
		enroll(t, s, i)
		want = append(want, thumb(i))
	}
	slices.Sort(want)
	for _, slot := range tagNames {
		for i := range 9 { // more than a piece, before and after all
			for _, at := range []string{"-", "~"} {
				server.Do("ZADD", s.key(slot, "i"+shortIssuer(testIssuer)), 0, fmt.Sprint(at, i))
			}
		}
	}
	for _, size := range []int{7, 100} {
		var got []string
		for after := ""; ; {
			list, next, err := s.Devices(t.Context(), testIssuer, signer.Page{Size: size, After: after})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range list {
				got = append(got, d.Thumbprint)
			}
			if after = next; next == "" || len(got) > n {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("pages of %d give %v, want %v", size, got, want)
		}
	}
}

// maxDeviceBytes is what a device may cost in memory, its indexes included.
const maxDeviceBytes = 512

// A device is small, whether it has signed or not. Few devices are measured as if
// they were many: with no index so short that the server would pack it.
func TestDeviceMemory(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{Args: []string{"--zset-max-ziplist-entries", "4"}})
	s := marked(t, Options{Addrs: []string{server.Addr()}, Replay: time.Millisecond})
	const n, first = 16000, 4000
	used := func() (bytes int) { // without what connections and the append-only file hold for a moment
		info := make(map[string]string)
		readInfo(server.Do("INFO", "memory").(string), info)
		for field, sign := range map[string]int{"used_memory": 1, "mem_clients_normal": -1, "mem_aof_buffer": -1} {
			n, err := strconv.Atoi(info[field])
			if err != nil {
				t.Fatalf("%s: %v", field, err)
			}
			bytes += sign * n
		}
		return bytes
	}
	all := func(from, to int, do func(i int) error) {
		t.Helper()
		var running sync.WaitGroup
		for w := range 32 {
			running.Go(func() {
				for i := from + w; i < to; i += 32 {
					if err := do(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		eventually(t, "the end of all jtis", func() error {
			server.Do("SCAN", "0", "COUNT", "1000000")
			if keys := server.Do("DBSIZE").(int64); keys > int64(to)+5*tags {
				return fmt.Errorf("%d keys are left", keys)
			}
			return nil
		})
	}
	sign := func(i int) error {
		a := byDevice(i, i)
		a.Limit = signer.Limit{}
		_, err := s.Authorize(t.Context(), a)
		return err
	}
	add := func(i int) error { _, err := s.Enroll(t.Context(), enrolment(i)); return err }
	all(0, first, add)
	all(0, first, sign)
	before := used()
	all(first, n, add)
	enrolled := used()
	all(first, n, sign)
	signed := used()
	t.Logf("bytes for each device: %d enrolled, %d having signed", (enrolled-before)/(n-first), (signed-before)/(n-first))
	if each := (signed - before) / (n - first); each > maxDeviceBytes {
		t.Errorf("a device takes %d bytes, want at most %d", each, maxDeviceBytes)
	}
}

func TestPackedSubjects(t *testing.T) {
	for _, c := range []struct {
		subject string
		bytes   int
	}{
		{"pa_abcdefghijklmnopqrstuvwxyz234567", 21},
		{"pa_" + strings.Repeat("a", 32), 21},
		{"pa_" + strings.Repeat("A", 32), 35},
		{"pa_" + strings.Repeat("1", 32), 35},
		{"xx_" + strings.Repeat("a", 32), 35},
		{"pa_x", 4},
		{"", 0},
	} {
		packed := packSubject(c.subject)
		if got := unpackSubject(packed); got != c.subject || len(packed) != c.bytes {
			t.Errorf("%q is packed in %d bytes and comes back as %q, want %d", c.subject, len(packed), got, c.bytes)
		}
	}
}
