package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// thumb is the thumbprint of test device n.
func thumb(n int) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// nth is a hash that no other n has.
func nth(what string, n int) signer.Hash { return sha256.Sum256(fmt.Append(nil, what, n)) }

func enrolment(n int) signer.Enrolment {
	point := make([]byte, 64)
	rand.Read(point)
	return signer.Enrolment{
		Device: signer.Device{
			Issuer: testIssuer, Thumbprint: thumb(n), Subject: "pa_abcdefghijklmnopqrstuvwxyz234567", Point: point, EnrolledAt: time.Now(),
		},
		JTI: nth("enrolment", n),
	}
}

func enroll(t testing.TB, s *Store, n int) {
	t.Helper()
	if _, err := s.Enroll(t.Context(), enrolment(n)); err != nil {
		t.Fatalf("enrol: %v", err)
	}
}

func secretOf(n int) signer.Hash { return nth("secret", n) }

func putCredential(t testing.TB, s *Store, n int) {
	t.Helper()
	err := s.PutCredential(t.Context(), signer.Credential{
		Issuer: testIssuer, ID: fmt.Sprint("id", n), Name: fmt.Sprint("name", n), Principal: "p", Subject: "pa_x", Hash: secretOf(n),
	}, acting("create credential", fmt.Sprint(n)))
	if err != nil {
		t.Fatalf("put credential: %v", err)
	}
}

// wide is a limit that is charged and not reached.
var wide = signer.Limit{Rate: 1e5, Burst: 1e6}

func byDevice(n, jti int) signer.Authorization {
	return signer.Authorization{Issuer: testIssuer, Kind: signer.DeviceCaller, Thumbprint: thumb(n), JTI: nth("jti", jti), Limit: wide, Sign: true}
}

func byCredential(n int) signer.Authorization {
	return signer.Authorization{Issuer: testIssuer, Kind: signer.CredentialCaller, Secret: secretOf(n), Limit: wide, Sign: true}
}

// commands is how many commands clients have sent to a server.
func commands(t testing.TB, r *servers.Redis) (evalsha, all int) {
	t.Helper()
	for _, line := range strings.Split(r.Do("INFO", "commandstats").(string), "\r\n") {
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok {
			continue
		}
		var n int
		fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
		if name == "cmdstat_evalsha" {
			evalsha = n
		}
	}
	for _, line := range strings.Split(r.Do("INFO", "stats").(string), "\r\n") {
		if n, ok := strings.CutPrefix(line, "total_commands_processed:"); ok {
			fmt.Sscan(n, &all)
		}
	}
	return evalsha, all
}

// An authorization is one command, whoever the caller is and how many there are
// at a time.
func TestAuthorizeIsOneCommand(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	enroll(t, s, 1)
	putCredential(t, s, 1)
	jti := 0
	next := []func() signer.Authorization{
		func() signer.Authorization { jti++; return byDevice(1, jti) },
		func() signer.Authorization { return byCredential(1) },
	}
	for _, f := range next { // connections and scripts are there
		if _, err := s.Authorize(t.Context(), f()); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range next {
		const n = 300
		asks := make([]signer.Authorization, n)
		for i := range asks {
			asks[i] = f()
		}
		before, _ := commands(t, server)
		var running sync.WaitGroup
		for _, a := range asks {
			running.Go(func() {
				if _, err := s.Authorize(t.Context(), a); err != nil {
					t.Errorf("authorize: %v", err)
				}
			})
		}
		running.Wait()
		if after, _ := commands(t, server); after-before != n {
			t.Errorf("%d authorizations of a %s took %d commands", n, asks[0].Kind, after-before)
		}
	}
	if evals := server.Do("INFO", "commandstats").(string); strings.Contains(evals, "cmdstat_eval:") {
		t.Error("scripts were sent as a whole")
	}
}

// A server that has lost its scripts gets them again, and every call its answer.
func TestScriptsAreLoadedAgain(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	enroll(t, s, 1)
	for i := range 3 {
		server.Do("SCRIPT", "FLUSH")
		var running sync.WaitGroup
		for j := range 20 {
			running.Go(func() {
				if _, err := s.Authorize(t.Context(), byDevice(1, 100*i+j)); err != nil {
					t.Errorf("authorize: %v", err)
				}
			})
		}
		running.Wait()
	}
}

// rawSignatures is how many ES256 signatures all cores make in a second.
func rawSignatures(b *testing.B) float64 {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	digest := sha256.Sum256([]byte("x"))
	var n atomic.Int64
	var running sync.WaitGroup
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for time.Since(began) < time.Second/2 {
				for range 50 {
					if _, err := ecdsa.SignASN1(rand.Reader, key, digest[:]); err != nil {
						b.Error(err)
						return
					}
				}
				n.Add(50)
			}
		})
	}
	running.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

// BenchmarkAuthorize asks with many callers at a time, and tells how long the
// cores need for one, server included, in ES256 signatures.
func BenchmarkAuthorize(b *testing.B) {
	for _, kind := range []signer.CallerKind{signer.CredentialCaller, signer.DeviceCaller} {
		b.Run(string(kind), func(b *testing.B) {
			server := servers.StartRedis(b, servers.RedisOptions{})
			s := marked(b, onServer(server))
			const callers = 64
			for n := range callers {
				enroll(b, s, n)
				putCredential(b, s, n)
			}
			raw := rawSignatures(b)
			var jti, next atomic.Int64
			var running sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for n := range callers {
				running.Go(func() {
					for next.Add(1) <= int64(b.N) {
						a := byCredential(n)
						if kind == signer.DeviceCaller {
							a = byDevice(n, int(jti.Add(1)))
						}
						if _, err := s.Authorize(context.Background(), a); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			running.Wait()
			b.StopTimer()
			raw = (raw + rawSignatures(b)) / 2
			perSecond := float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(perSecond, "calls/s")
			b.ReportMetric(raw, "raw/s")
			b.ReportMetric(raw/perSecond, "signatures/call")
		})
	}
}

// A device that has not signed in its time is unknown from that moment on, also while
// it waits behind others to be removed, and may enrol again.
func TestNeverSignedInTime(t *testing.T) {
	var offset atomicDuration
	o := onServer(servers.StartRedis(t, servers.RedisOptions{}))
	o.Offset = offset.load
	s := marked(t, o)
	var together []int // in one tag, and more than one sweep removes
	for n := 0; len(together) < 40; n++ {
		if tagOf(testIssuer, thumb(n)) == tagNames[7] {
			together = append(together, n)
			enroll(t, s, n)
		}
	}
	first, last := together[0], together[len(together)-1]
	jti := 0
	sign := func(n int) error {
		jti++
		_, err := s.Authorize(t.Context(), byDevice(n, jti))
		return err
	}
	if err := sign(first); err != nil {
		t.Fatal(err)
	}
	offset.add(30*24*time.Hour + time.Minute)
	var refused *signer.RefusedError
	if err := sign(last); !errors.As(err, &refused) || refused.Why != "unknown" {
		t.Fatalf("a sign too late gives %v", err)
	}
	if err := sign(first); err != nil {
		t.Fatalf("one that had signed: %v", err)
	}
	if d, err := s.Device(t.Context(), testIssuer, thumb(last)); !errors.Is(err, signer.ErrNotFound) {
		t.Fatalf("it is there: %+v, %v", d, err)
	}
	again := enrolment(last)
	again.JTI, again.Device.Subject, again.Device.EnrolledAt = nth("again", 1), "pa_again", time.Time{}
	if d, err := s.Enroll(t.Context(), again); err != nil || d.Subject != "pa_again" {
		t.Fatalf("enrolled again it is %+v, %v", d, err)
	}
	if err := sign(last); err != nil {
		t.Fatal(err)
	}
	list, _, err := s.Devices(t.Context(), testIssuer, signer.Page{})
	if err != nil || len(list) != 2 {
		t.Fatalf("%d devices are there, %v", len(list), err)
	}
	if n, _, err := s.Counts(t.Context(), testIssuer); err != nil || n != 2 {
		t.Fatalf("%d devices count, %v", n, err)
	}
}

// No two issuers that anybody finds have one name in keys, whatever their devices are.
func TestShortIssuers(t *testing.T) {
	seen := make(map[string]bool)
	for i := range 200000 { // at 32 bits, four pairs
		short := shortIssuer(fmt.Sprintf("https://tenant-%d.example", i))
		if len(short) != shortIssuerLen || seen[short] {
			t.Fatalf("issuer %d is %q, as another", i, short)
		}
		seen[short] = true
	}
}
