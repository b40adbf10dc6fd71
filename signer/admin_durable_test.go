package signer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// recordless is custody that does not take the switch's record.
type recordless struct {
	why func(s killswitch.State) error
}

func (r recordless) Load(context.Context) (killswitch.State, error) { return killswitch.State{}, nil }

func (r recordless) Save(_ context.Context, s killswitch.State) error { return r.why(s) }

// An operator is told why custody does not have a kill or a resume.
func TestNotDurable(t *testing.T) {
	left := func(s killswitch.State) error {
		e := new(killswitch.FullError)
		for _, x := range s.Entries {
			e.Left = append(e.Left, x.ID)
		}
		return e
	}
	for want, why := range map[string]func(killswitch.State) error{
		"Not yet durable in custody: its record of the switch is full.": left,
		"Not yet durable in custody: custody is away.": func(killswitch.State) error {
			return fmt.Errorf("connection refused: %w", custody.ErrUnavailable)
		},
		"Not yet durable in custody, which refuses it: save the high-water record: it has 400000 bytes": func(killswitch.State) error {
			return errors.New("it has 400000 bytes")
		},
	} {
		w := newAdminWorld(t, issuerA)
		secret, hash := signer.NewAdminToken()
		w.tokens[signer.RoleAdmin] = secret
		admin, err := signer.NewAdmin(signer.AdminConfig{
			Store: w.store, Switch: killswitch.NewSwitch(killswitch.SwitchConfig{Store: w.store, HighWater: recordless{why}}),
			Guard: w.guard, Fleet: w.store, State: w.state, Keyring: w.keyring, Issuers: w.issuers, Version: "test", Replica: "r1",
			Tokens: []signer.AdminToken{{Name: "admin@test", Role: signer.RoleAdmin, Hash: hash}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.handler = admin.Handler()
		w.serve(0)
		resp, err := w.admin().Kill(t.Context(), &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "drill"})
		if err != nil || resp.DurableInCustody || len(resp.Notes) != 1 || !strings.HasPrefix(resp.Notes[0], want) || !strings.Contains(resp.Notes[0], "do not lose the store") {
			t.Errorf("kill: %v, %v; want %q", resp, err, want)
			continue
		}
		var header metadata.MD
		lifted, err := w.admin().Resume(t.Context(), &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, EntryIds: []string{resp.Entry.Id}, Reason: "over"}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		if got := header.Get(signer.NotDurableHeader); !lifted.DurableInCustody && (len(got) != 1 || !strings.HasPrefix(got[0], want)) {
			t.Errorf("resume: header %q, want %q", got, want)
		}
	}
}
