package signer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// lonely is a store whose copies have not acknowledged what was thrown and lifted
// until it says so.
type lonely struct {
	*bolt.Store
	acknowledged atomic.Bool
}

func (l *lonely) answer(err error) error {
	if err == nil && !l.acknowledged.Load() {
		err = fmt.Errorf("0 of 1 copies: %w", killswitch.ErrUnacknowledged)
	}
	return err
}

func (l *lonely) Kill(ctx context.Context, e killswitch.Entry, floor uint64, a audit.Entry) (killswitch.Entry, []killswitch.Replica, error) {
	e, replicas, err := l.Store.Kill(ctx, e, floor, a)
	return e, replicas, l.answer(err)
}

func (l *lonely) Resume(ctx context.Context, r killswitch.Resume, seen, floor uint64, a audit.Entry) (killswitch.Resume, error) {
	r, err := l.Store.Resume(ctx, r, seen, floor, a)
	return r, l.answer(err)
}

func (l *lonely) Merge(ctx context.Context, s killswitch.State) (killswitch.State, error) {
	s, err := l.Store.Merge(ctx, s)
	return s, l.answer(err)
}

// A kill that the store's copies have not acknowledged stands, custody has it, the
// operator is told, and it is not said to be effective.
func TestKillUnacknowledged(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	store := &lonely{Store: w.store}
	high := killswitch.DocumentHighWater{Documents: keyringDocuments{w.keyring}, Name: "switch", NotFound: custody.ErrNotFound, Conflict: custody.ErrConflict}
	secret, hash := signer.NewAdminToken()
	w.tokens[signer.RoleAdmin] = secret
	admin, err := signer.NewAdmin(signer.AdminConfig{
		Store: w.store, Switch: killswitch.NewSwitch(killswitch.SwitchConfig{Store: store, HighWater: high}),
		Guard: w.guard, Fleet: w.store, State: w.state, Keyring: w.keyring, Issuers: w.issuers, Version: "test", Replica: "r1",
		Tokens: []signer.AdminToken{{Name: "admin@test", Role: signer.RoleAdmin, Hash: hash}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = admin.Handler()
	w.serve(0)
	resp, err := w.admin().Kill(t.Context(), &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "drill"})
	if err != nil || !resp.DurableInCustody || len(resp.Notes) != 1 || !strings.Contains(resp.Notes[0], "copies of the store have not acknowledged it") || !strings.Contains(resp.Notes[0], "Custody has it") {
		t.Fatalf("kill: %v, %v", resp, err)
	}
	if s, err := high.Load(t.Context()); err != nil || len(s.Live()) != 1 {
		t.Fatalf("custody holds %+v, %v", s, err)
	}
	stream, err := w.admin().WaitKill(t.Context(), &signerv1.WaitKillRequest{Epoch: resp.Entry.Epoch})
	if err != nil {
		t.Fatal(err)
	}
	for confirmed := false; ; {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) && confirmed {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if b.EffectiveAt.AsTime().Before(resp.Entry.Time.AsTime()) {
			t.Errorf("it is effective at %v, and was thrown at %v", b.EffectiveAt.AsTime(), resp.Entry.Time.AsTime())
		}
		if !b.Effective && confirmed && b.Unsettled != "" {
			continue // what was said before it was acknowledged
		}
		if b.Effective && !confirmed {
			t.Fatalf("effective before it was acknowledged: %v", b)
		}
		if len(b.Confirmed) == 1 && !confirmed {
			confirmed = true
			store.acknowledged.Store(true)
		}
	}
	store.acknowledged.Store(false)
	var header metadata.MD
	if _, err := w.admin().Resume(t.Context(), &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, EntryIds: []string{resp.Entry.Id}, Reason: "over"}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got := header.Get(signer.NotDurableHeader); len(got) != 1 || !strings.HasPrefix(got[0], "The entries are lifted, but the copies of the store have not acknowledged it") {
		t.Errorf("the resume's header is %q", got)
	}
}

// What a replica has in its hands that was paused while it signed is thrown away, on
// either face: its permit has run out, whatever it believes.
func TestPausedDuringSignature(t *testing.T) {
	eachFaceAndCaller(t, asIs, func(t *testing.T, w *contractWorld, call face, c caller) {
		var signed []byte
		w.keyring.watch(func(ctx context.Context, name string, digest []byte) (_ []byte, err error) {
			signed, err = w.keyring.Keyring.Sign(ctx, name, digest)
			w.clock.offset.Add(int64(4 * time.Second))
			return signed, err
		})
		call("/pact/sign", goodSign, c.auth("/pact/sign")).refused(t, 503, "unavailable")
		if signed == nil {
			t.Error("refused before the signature: this proves nothing")
		}
	})
}
