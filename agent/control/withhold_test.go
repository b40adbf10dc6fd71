package control_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// DA-15, CP-4: what belongs to a sign-in that waits is told to no task and to no token
// below operator, wherever it stands in an answer, whoever wrote it there: in its own
// business's words in every disguise, in another's as it is written.
func TestLinkAndCodeAreWithheld(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	begun := owner.operate("/v1/authorizations:start", `{"business":"`+w.air()+`","scopes":["`+upcoming+`"]}`, nil)
	in := new(agentv1.SignIn)
	if owner.do("POST", "/v1/authorizations/"+begun.Authorization.GetId()+":signIn", `{}`, in); in.UserCode == "" || in.Link == "" {
		t.Fatalf("the sign-in is %+v", in)
	}
	// Both have them in their names, by cards that they had before.
	change := owner.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+`","effect":"change"}`, nil)
	hidden := in.UserCode[:1] + "\u2066" + in.UserCode[1:]
	err := w.store.Update(t.Context(), func(tx agent.Tx) error {
		shops, err := tx.Find(agent.KindBusiness, agent.Query{Principal: "owner"})
		for _, r := range shops {
			r.Data = bytes.ReplaceAll(r.Data, []byte("Marrow Books"), []byte("Marrow "+in.UserCode+" "+in.Link+" time"))
			r.Data = bytes.ReplaceAll(r.Data, []byte("Larkline Air"), []byte("Larkline "+in.UserCode+" "+hidden+" "+in.Link))
			err = errors.Join(err, tx.Put(agent.KindBusiness, r))
		}
		return err
	})
	if err != nil || change.Approval.GetId() == "" {
		t.Fatalf("%v, %v", change, err)
	}
	bare := func(s string) string { return strings.ReplaceAll(strings.ToUpper(agent.Visible(s)), "-", "") }
	code := bare(in.UserCode)
	operator := owner.with("Authorization", "Bearer "+w.token(control.ScopeOperator).Reveal())
	for name, c := range map[string]*curl{"the owner": owner, "an operator": operator} {
		c.heard = new(heard)
		if c.do("GET", "/v1/businesses", "", nil); !strings.Contains(bare(c.heard.String()), code) {
			t.Errorf("%s does not see the name: %s", name, c.heard)
		}
	}
	for name, c := range map[string]*curl{
		"reader":            owner.with("Authorization", "Bearer "+w.token(control.ScopeRead).Reveal()),
		"writer":            owner.with("Authorization", "Bearer "+w.token(control.ScopeWrite).Reveal()),
		"assistant":         owner.with("Authorization", "Bearer "+w.token(control.ScopeAssistant).Reveal()),
		"task of the owner": owner.with("Pact-Task", "trip"),
	} {
		c.heard = new(heard)
		for _, path := range []string{"/v1/approvals", "/v1/authorizations", "/v1/conversations", "/v1/businesses", "/v1/status"} {
			c.do("GET", path, "", nil)
		}
		c.do("POST", "/v1/businesses:discover", `{"cardUrl":"`+w.shop()+`"}`, nil)
		if said := c.heard.String(); !strings.Contains(said, "Marrow "+agent.Redacted+" "+agent.Redacted+" time") || !strings.Contains(said, "Larkline "+agent.Redacted) {
			t.Errorf("%s is told nothing of them: %s", name, c.heard)
		}
		if said := bare(c.heard.String()); strings.Contains(said, code) || strings.Contains(said, bare(in.Link)) {
			t.Errorf("%s is told: %s", name, c.heard)
		}
	}
	task := owner.with("Pact-Task", "trip")
	task.heard = new(heard)
	task.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"`+w.change().Message+` today","effect":"change"}`, nil)
	if said := bare(task.heard.String()); strings.Contains(said, code) || !strings.Contains(said, "MARROW") {
		t.Errorf("a stream tells: %s", task.heard)
	}
	// A refusal too.
	task.heard = new(heard)
	if code := task.do("POST", "/v1/businesses:discover", `{"domain":"`+strings.ToLower(in.UserCode)+`.`+in.UserCode+`_!.example"}`, nil); code != 400 {
		t.Errorf("discover: %d", code)
	}
	if said := bare(task.heard.String()); strings.Contains(said, code) {
		t.Errorf("a refusal tells: %s", task.heard)
	}
}

// AD-2, AP-1: a token of scope assistant, and a task, give no word of the owner's by an
// inspection, whatever program holds the token.
func TestTaskConfirmsNothing(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	owner := w.curl()
	for name, c := range map[string]*curl{
		"assistant": owner.with("Authorization", "Bearer "+w.token(control.ScopeAssistant).Reveal()), "task of the owner": owner.with("Pact-Task", "trip"),
	} {
		r := c.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"yes?","effect":"inspect"}`, nil)
		if r.Status != string(agent.StatusApprovalRequired) || r.Effect != "unknown" || r.Approval.GetEffect() != "unknown" {
			t.Errorf("%s: %v", name, r)
		}
	}
	if r := owner.operate("/v1/conversations:send", `{"business":"`+w.shop()+`","message":"yes?","effect":"inspect"}`, nil); r.Status != string(agent.StatusReplied) {
		t.Errorf("the owner: %v", r)
	}
}

// A revoked token's operation ends where it waits, and its call that is answered at
// once; the sign-in stays for the owner, and sends nothing in the token's name.
func TestRevokedOperatorSendsNothing(t *testing.T) {
	w := newWorld(t, startSigner(t), true)
	secret := w.token(control.ScopeOperator).Reveal()
	operator := w.curl().with("Authorization", "Bearer "+secret)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := operator.open(ctx, http.MethodPost, "/v1/conversations:send",
		`{"business":"`+w.air()+`","message":"Which flights do I have?","effect":"inspect","scopes":["`+upcoming+`"],"waitForSignIn":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var signIn agent.AuthorizationView
	for signIn.ID == "" { // until it waits
		list, err := w.local.Authorizations(ctx, w.caller())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			if v.State == "pending" {
				signIn = v
			}
		}
	}
	status := make(chan string, 1)
	go func() {
		code, text, err := operator.try("GET", "/v1/authorizations/"+signIn.ID+":status?wait=60s", "")
		if err != nil || code != http.StatusUnauthorized || !strings.Contains(text, "UNAUTHENTICATED") {
			t.Errorf("the status is told: %d %s, %v", code, text, err)
		}
		status <- text
	}()
	if _, err := control.NewTokens(w.store, owner, nil).Revoke(ctx, "t-operator"); err != nil {
		t.Fatal(err)
	}
	text := new(strings.Builder)
	for buf := make([]byte, 1024); err == nil; {
		var n int
		n, err = resp.Body.Read(buf)
		text.Write(buf[:n])
	}
	if !strings.Contains(text.String(), "UNAUTHENTICATED") || strings.Contains(text.String(), `"status"`) {
		t.Errorf("the operation ends with %s", text)
	}
	<-status
	v, err := w.local.Authorization(ctx, w.caller(), signIn.ID)
	if err != nil || v.State != "pending" {
		t.Errorf("the sign-in: %+v, %v", v, err)
	}
	c := w.person()
	r, err := w.local.WaitAuthorization(ctx, c, signIn.ID)
	w.ended("wait", r, err, agent.StatusDone, "")
	list, err := w.local.Conversations(ctx, w.caller())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		one, err := w.local.Conversation(ctx, w.caller(), l.ID)
		for _, m := range one.Messages {
			if !m.Introduction {
				t.Errorf("it was sent: %+v, %v", m, err)
			}
		}
	}
}

// DA-17: a wait that is interrupted, wherever it stands, ends as one in process does.
func TestInterruptedBeforeItWaits(t *testing.T) {
	for name, answer := range map[string]error{"while the link is asked for": nil, "at the agent": status.Error(codes.DeadlineExceeded, "over")} {
		ctx, interrupt := context.WithCancel(t.Context())
		p := &peer{
			signIn: func(ctx context.Context) error {
				if answer == nil {
					interrupt()
					<-ctx.Done()
				}
				return refusedBecause(codes.NotFound, "NOT_FOUND", "")
			},
			wait: func(ctx context.Context) error {
				interrupt()
				<-ctx.Done()
				return answer
			},
			authorization: &agentv1.Authorization{Id: "signin-x", State: "pending", Business: "b-1"},
		}
		c := surfaceCaller
		c.SignIn = func(context.Context, agent.SignIn) error { return nil }
		r, err := dialPeer(t, p).WaitAuthorization(ctx, c, "signin-x")
		if err != nil || r.Status != agent.StatusNeedsUserAction || r.Reason != agent.ReasonSignInPending || r.Authorization == nil || r.Authorization.ID != "signin-x" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
