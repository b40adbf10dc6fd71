package redis

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

func wantWhy(t *testing.T, what string, err error, why string) {
	t.Helper()
	var refused *signer.RefusedError
	if why == "" && err == nil || errors.As(err, &refused) && refused.Why == why {
		return
	}
	t.Errorf("%s: got %v, want the refusal %q", what, err, why)
}

func bearer(n int) signer.Authorization {
	a := byCredential(n)
	a.Limit = signer.Limit{}
	return a
}

// announce begins the update of credential 1 and goes no further.
func announce(t *testing.T, s *Store, change func(*signer.Credential)) (old, next stored) {
	t.Helper()
	old, err := s.credential(t.Context(), testIssuer, "id1")
	if err != nil {
		t.Fatal(err)
	}
	c := old.Credential
	change(&c)
	if next, err = encodeCredential(old.Version+1, c); err != nil {
		t.Fatal(err)
	}
	reply, err := s.run(t.Context(), announceScript, globalSlot, s.credentialKeys(testIssuer), append(claims(c), old.raw, next.raw)...)
	if err != nil || text(reply) != "" {
		t.Fatalf("announce: %v, %v", reply, err)
	}
	return old, next
}

// An update that was cut short is finished by whoever comes next, from wherever it
// stopped, and never are two secrets of one credential accepted.
func TestInterruptedRotation(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	for name, goOn := range map[string]func(s *Store, old, next stored) error{
		"after its announcement": func(*Store, stored, stored) error { return nil },
		"after the old hash's end": func(s *Store, old, _ stored) error {
			slot := tagOf(testIssuer, string(old.Hash[:]))
			_, err := s.run(t.Context(), endHashScript, slot, []string{s.credentialKey(slot, testIssuer, old.Hash)})
			return err
		},
		"before the record": func(s *Store, old, next stored) error {
			slot := tagOf(testIssuer, string(old.Hash[:]))
			if _, err := s.run(t.Context(), endHashScript, slot, []string{s.credentialKey(slot, testIssuer, old.Hash)}); err != nil {
				return err
			}
			return s.putHash(t.Context(), next.credentialRecord)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server.Wipe()
			s := marked(t, onServer(server))
			putCredential(t, s, 1)
			old, next := announce(t, s, func(c *signer.Credential) { c.Hash = secretOf(2) })
			if err := goOn(s, old, next); err != nil {
				t.Fatal(err)
			}
			_, errOld := s.Authorize(t.Context(), bearer(1))
			_, errNew := s.Authorize(t.Context(), bearer(2))
			if errOld == nil && errNew == nil {
				t.Error("two secrets of one credential are accepted")
			}
			other := unmarked(t, onServer(server))
			c, err := other.Credential(t.Context(), testIssuer, "id1")
			if err != nil || c.Hash != secretOf(2) {
				t.Fatalf("the credential is %+v, %v", c, err)
			}
			_, err = s.Authorize(t.Context(), bearer(1))
			wantWhy(t, "the old secret", err, "unknown")
			_, err = s.Authorize(t.Context(), bearer(2))
			wantWhy(t, "the new secret", err, "")
			if _, n, err := s.Counts(t.Context(), testIssuer); n != 1 || err != nil {
				t.Errorf("there are %d credentials, %v", n, err)
			}
		})
	}
}

// What comes late gives nobody back what was taken from him.
func TestLateWritesOfACredential(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	putCredential(t, s, 1)
	before, err := s.credential(t.Context(), testIssuer, "id1")
	if err != nil {
		t.Fatal(err)
	}
	old, next := announce(t, s, func(c *signer.Credential) { c.Hash = secretOf(2) })
	if err := s.finish(t.Context(), old, next); err != nil {
		t.Fatal(err)
	}
	if err := s.putHash(t.Context(), before.credentialRecord); err != nil {
		t.Fatal(err)
	}
	_, err = s.Authorize(t.Context(), bearer(1))
	wantWhy(t, "a secret that was rotated", err, "unknown")

	_, err = s.UpdateCredential(t.Context(), testIssuer, "id1", func(c *signer.Credential) error {
		c.RevokedAt = time.Now()
		return nil
	}, acting("revoke", "id1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.finish(t.Context(), old, next); err != nil {
		t.Fatal(err)
	}
	_, err = s.Authorize(t.Context(), bearer(2))
	wantWhy(t, "a revoked credential", err, "revoked")
	if c, err := s.Credential(t.Context(), testIssuer, "id1"); err != nil || c.RevokedAt.IsZero() {
		t.Errorf("the record is %+v, %v", c, err)
	}
	if _, n, err := s.Counts(t.Context(), testIssuer); n != 0 || err != nil {
		t.Errorf("there are %d credentials in force, %v", n, err)
	}
}

// A reservation holds its room until its device is made or no longer can be.
func TestReservations(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	var offset atomicDuration
	s := marked(t, Options{Addrs: []string{server.Addr()}, Offset: offset.load})
	capped := func(n, limit int) error {
		e := enrolment(n)
		e.Cap, e.JTI = limit, nth("jti of", int(time.Now().UnixNano()))
		_, err := s.Enroll(t.Context(), e)
		return err
	}
	if err := capped(1, 2); err != nil {
		t.Fatal(err)
	}
	until, err := s.reserve(t.Context(), testIssuer, thumb(2), 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := capped(3, 2); !errors.Is(err, signer.ErrFull) {
			t.Fatalf("a third device under a cap of two: %v", err)
		}
		offset.add(2 * time.Second) // it is counted again
	}
	if _, err := s.makeDevice(t.Context(), enrolment(2), until); err == nil {
		t.Fatal("a device was made after its reservation's time")
	}
	offset.add(held)
	if err := capped(3, 2); err != nil {
		t.Fatalf("after the reservation has ended: %v", err)
	}
	if err := capped(4, 2); !errors.Is(err, signer.ErrFull) {
		t.Fatalf("a third device: %v", err)
	}
	// Devices that were made without a cap count, once there is one.
	for n := range 5 {
		e := enrolment(100 + n)
		if _, err := s.Enroll(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	offset.add(2 * time.Minute)
	if err := capped(5, 7); !errors.Is(err, signer.ErrFull) {
		t.Fatalf("an eighth device under a cap of seven: %v", err)
	}
	if err := capped(5, 8); err != nil {
		t.Fatalf("an eighth device under a cap of eight: %v", err)
	}
}

// What takes access from somebody is acknowledged by the copies, or says that it
// is not; and what stands on the master is returned all the same.
func TestAcknowledgements(t *testing.T) {
	master := servers.StartRedis(t, servers.RedisOptions{})
	copy := servers.StartRedis(t, servers.RedisOptions{ReplicaOf: master})
	o := onServer(master)
	o.Acks = 1
	s := marked(t, acknowledged(o))
	populate(t, s)
	revoke := func(reason string) (signer.Credential, error) {
		return s.UpdateCredential(t.Context(), testIssuer, "id1", func(c *signer.Credential) error {
			c.RevokedAt, c.Reason = time.Now(), reason
			return nil
		}, acting("revoke", "id1"))
	}
	if _, err := s.Invalidate(t.Context(), testIssuer, thumb(3), "r", acting("invalidate", "3")); err != nil {
		t.Errorf("with a copy: %v", err)
	}
	if _, err := revoke("once"); err != nil {
		t.Errorf("with a copy: %v", err)
	}
	copy.Pause()
	s = unmarked(t, o)
	for range 2 { // also when there is nothing left to change
		d, err := s.Invalidate(t.Context(), testIssuer, thumb(1), "r", acting("invalidate", "1"))
		if !errors.Is(err, killswitch.ErrUnacknowledged) || d.InvalidatedAt.IsZero() {
			t.Errorf("without a copy: %+v, %v", d, err)
		}
		c, err := revoke("twice")
		if !errors.Is(err, killswitch.ErrUnacknowledged) || c.RevokedAt.IsZero() {
			t.Errorf("without a copy: %+v, %v", c, err)
		}
	}
	_, err := s.Authorize(t.Context(), byDevice(1, 7e6))
	wantWhy(t, "an invalidated device", err, "invalidated")
	copy.Resume()
	eventually(t, "an invalidation with a copy again", func() error {
		_, err := s.Invalidate(t.Context(), testIssuer, thumb(1), "r", acting("invalidate", "1"))
		return err
	})
	log := verifiedLog(t, s)
	if n := count(log, "invalidate", "1"); n < 3 {
		t.Errorf("the audit log has %d of the invalidations", n)
	}
}

// A replica whose registry changed without its knowing learns it with its beat.
func TestRegistryByBeat(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	other := unmarked(t, onServer(server))
	beat(t, other, "other")
	before := other.AudiencesRevision()
	beat(t, other, "other")
	if other.AudiencesRevision() != before {
		t.Error("the revision moved though nothing changed")
	}
	// Half a change: it is in the registry, and no tag knows.
	reply, err := s.run(t.Context(), setAudienceScript, globalSlot, []string{s.audiencesKey(testIssuer), s.namesKey(globalSlot)},
		"0", "https://a", `{"origin":"https://a","audience":"a"}`, shortIssuer(testIssuer), testIssuer)
	if err != nil || text(reply) == "" {
		t.Fatalf("set: %v, %v", reply, err)
	}
	beat(t, other, "other")
	if other.AudiencesRevision() == before {
		t.Error("a beat did not tell of a changed registry")
	}
}

// Every tag enforces an epoch once Enforce has returned, and none is lowered.
func TestEnforceReachesEveryTag(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	for _, epoch := range []uint64{3, 2, 7} {
		if err := s.Enforce(t.Context(), epoch); err != nil {
			t.Fatal(err)
		}
		for _, slot := range tagNames {
			if got := server.Do("HGET", "pact:{"+slot+"}:m", "epoch"); got != fmt.Sprint(max(epoch, 3)) {
				t.Fatalf("after enforcing %d tag %s has %v", epoch, slot, got)
			}
		}
	}
	for n := range 20 {
		a := byDevice(n, n)
		a.Epoch = 6
		if _, err := s.Authorize(context.Background(), a); !errors.Is(err, signer.ErrStaleEpoch) {
			t.Errorf("a sign in an old epoch: %v", err)
		}
	}
}
