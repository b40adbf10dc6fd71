package agent_test

import (
	"context"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/sqlite"
	"github.com/pactsigner/pactsigner/sandbox"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// The straight path over real sockets, against a business that is not made of
// this package: enrol, discover, identity turn, consent, inspection, step-up, a
// change, every receipt verified, disconnect.
func TestSandbox(t *testing.T) {
	const scale = 30
	signer := newSigner(t)
	pa := httptest.NewServer(signer)
	defer pa.Close()
	signer.url, signer.issuer, signer.audiences = pa.URL, pa.URL, nil

	params, full := sandbox.Defaults().Scaled(scale), sandbox.Defaults() // what things live is as long as ever, for a busy machine
	params.Leeway, params.MaxAge, params.DeviceCodeTTL, params.SessionTTL = full.Leeway, full.MaxAge, full.DeviceCodeTTL, full.SessionTTL
	params.AssertionTTL, params.TokenTTL = full.AssertionTTL, full.TokenTTL
	box, err := sandbox.New(sandbox.Config{PasswordMemory: 64, Params: params})
	if err != nil {
		t.Fatal(err)
	}
	box.Start()
	defer box.Close()
	ready := box.Ready()

	dir := t.TempDir()
	store, err := sqlite.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	// Its waits are short; a request, and a sign-in, may take as long as ever.
	quick := agent.Defaults().Scaled(scale)
	quick.ConsentMax = agent.Defaults().ConsentMax
	a, err := agent.Open(agent.Config{Dir: dir, Store: store, Key: agent.KeyFile, Params: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()

	ctx := t.Context()
	c := owner()
	c.Human = agent.HumanInteractive
	approvals := 0
	c.Approve = func(context.Context, agent.ApprovalRequest) (bool, error) { approvals++; return true, nil }
	c.SignIn = func(ctx context.Context, s agent.SignIn) error {
		_, err := person.Person{Login: ready.Login}.AllowAll(ctx, s.Link.Reveal())
		return err
	}
	if v, err := a.Enroll(ctx, c, agent.EnrollRequest{SignerURL: pa.URL}); err != nil || !v.Development {
		t.Fatalf("enrol: %+v, %v", v, err)
	}
	if _, err := a.AddProvider(ctx, c, ready.Provider, ready.Audience, "sandbox"); err != nil {
		t.Fatal(err)
	}
	air, books := ready.Brands[0].Card, ready.Brands[1].Card
	v, err := a.Discover(ctx, c, agent.ParseBusiness(air))
	if err != nil || !v.Supported || v.Profile != agent.ProfileDelegated || len(v.Chain) != 2 {
		t.Fatalf("discover: %+v, %v", v, err)
	}

	send := func(req agent.SendRequest) agent.Result {
		t.Helper()
		r, err := a.Send(ctx, c, req)
		if err != nil || r.Status != agent.StatusReplied {
			t.Fatalf("send %q: %+v, %v", req.Message, r, err)
		}
		return r
	}
	send(agent.SendRequest{Business: books, Message: "Do you have anything by Woolf?", Effect: "inspect"})

	// No permission is named: the business asks for it.
	first := send(agent.SendRequest{Business: air, Message: "Show my upcoming flights", Effect: "inspect"})
	if first.Evidence == nil || first.Evidence.Verdict != agent.VerdictVerified || !strings.Contains(first.Reply, "LK 204") {
		t.Errorf("inspection: %+v", first)
	}
	change := send(agent.SendRequest{Business: air, Message: "Rebook me onto LK 318", Effect: "change", Conversation: first.Conversation})
	if change.Evidence == nil || change.Evidence.Verdict != agent.VerdictVerified || approvals < 2 {
		t.Errorf("change: %+v after %d approvals", change, approvals)
	}

	list, err := a.Receipts(ctx, c)
	if err != nil || len(list) != 2 {
		t.Fatalf("receipts %+v, %v", list, err)
	}
	for _, r := range list {
		if got, err := a.VerifyStoredReceipt(ctx, c, r.ID); err != nil || got.Verdict != agent.VerdictVerified {
			t.Errorf("receipt %+v, %v", got, err)
		}
	}
	grants, err := a.Grants(ctx, c)
	if err != nil || len(grants) == 0 {
		t.Fatalf("grants %+v, %v", grants, err)
	}
	if d, err := a.Disconnect(ctx, c, grants[0].ID); err != nil || d.Grant.State != "disconnected" {
		t.Errorf("disconnect %+v, %v", d, err)
	}
}
