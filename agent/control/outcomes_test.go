package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/internal/bubble"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// outcomeCall is one call of a method that streams, with what the client gave it.
type outcomeCall struct {
	o     *outcomes
	t     *testing.T
	actor string
	token string
}

func (c outcomeCall) serve(ctx context.Context, run func(context.Context, func(*agentv1.OperationUpdate) error) error, pairs ...string) ([]*agentv1.OperationUpdate, error) {
	var sent []*agentv1.OperationUpdate
	err := c.o.serve(metadata.NewIncomingContext(ctx, metadata.Pairs(pairs...)), caller{actor: c.actor, token: c.token}, &agentv1.SendMessageRequest{}, func(u *agentv1.OperationUpdate) error {
		sent = append(sent, u)
		return nil
	}, func(ctx context.Context, to teller) error { return run(ctx, to.send) })
	return sent, err
}

func (c outcomeCall) nothing(context.Context, func(*agentv1.OperationUpdate) error) error {
	c.t.Error("an operation was begun")
	return nil
}

func progressUpdate() *agentv1.OperationUpdate {
	return &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Progress{Progress: &agentv1.Progress{Kind: "sending"}}}
}

func resultUpdate(status string) *agentv1.OperationUpdate {
	return &agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: &agentv1.Result{Status: status}}}
}

func replies(status string) func(context.Context, func(*agentv1.OperationUpdate) error) error {
	return func(_ context.Context, send func(*agentv1.OperationUpdate) error) error {
		return errors.Join(send(progressUpdate()), send(resultUpdate(status)))
	}
}

// TestOutcomeOfWhoLeft (CV-16): a caller that left is told how their operation ended,
// and nothing is begun by asking.
func TestOutcomeOfWhoLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
		ctx, leave := context.WithCancel(t.Context())
		begun := make(chan struct{})
		go func() {
			_ = c.o.serve(metadata.NewIncomingContext(ctx, metadata.Pairs(operationKey, "o-1")), caller{actor: "owner"}, &agentv1.SendMessageRequest{}, func(u *agentv1.OperationUpdate) error {
				return ctx.Err() // nobody hears it
			}, func(ctx context.Context, to teller) error {
				close(begun)
				<-ctx.Done()
				time.Sleep(time.Second) // what was sent is waited for
				return to.send(resultUpdate("outcome_unknown"))
			})
		}()
		<-begun
		leave()
		sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "o-1")
		if err != nil || len(sent) != 1 || sent[0].GetResult().GetStatus() != "outcome_unknown" {
			t.Fatalf("sent %v, %v", sent, err)
		}
		other := outcomeCall{c.o, t, "token other", "token-2"}
		if sent, err := other.serve(t.Context(), c.nothing, outcomeKey, "o-1"); status.Code(err) != codes.NotFound || sent != nil {
			t.Errorf("another's operation: %v, %v", sent, err)
		}
		time.Sleep(outcomeLife + time.Second)
		if _, err := c.serve(t.Context(), replies("replied"), operationKey, "o-2"); err != nil {
			t.Fatal(err)
		}
		if sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "o-1"); status.Code(err) != codes.NotFound || sent != nil {
			t.Errorf("an old operation: %v, %v", sent, err)
		}
	})
}

func TestOutcomeOfAnError(t *testing.T) {
	c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
	failed := errors.New("the disk is full")
	if _, err := c.serve(t.Context(), func(context.Context, func(*agentv1.OperationUpdate) error) error { return failed }, operationKey, "o-1"); err != failed {
		t.Fatal(err)
	}
	if sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "o-1"); err != failed || sent != nil {
		t.Errorf("%v, %v", sent, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = c.serve(t.Context(), func(context.Context, func(*agentv1.OperationUpdate) error) error { panic("a bug") }, operationKey, "o-2")
	}()
	if sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "o-2"); status.Code(err) != codes.Internal || sent != nil {
		t.Errorf("after a panic: %v, %v", sent, err)
	}
}

func TestOutcomeKeys(t *testing.T) {
	c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
	if sent, err := c.serve(t.Context(), replies("replied")); err != nil || len(sent) != 2 {
		t.Errorf("without an id: %v, %v", sent, err)
	}
	if sent, err := c.serve(t.Context(), replies("replied"), operationKey, "o-1"); err != nil || len(sent) != 2 {
		t.Errorf("with an id: %v, %v", sent, err)
	}
	for name, pairs := range map[string][]string{
		"the id of another operation": {operationKey, "o-1"},
		"both":                        {operationKey, "o-2", outcomeKey, "o-1"},
		"two":                         {operationKey, "o-2", operationKey, "o-3"},
		"two that are asked for":      {outcomeKey, "o-1", outcomeKey, "o-1"},
		"empty":                       {operationKey, ""},
		"too long":                    {operationKey, strings.Repeat("a", maxOperationID+1)},
		"blanks":                      {operationKey, "o 2"},
		"not ASCII":                   {outcomeKey, "ö"},
	} {
		sent, err := c.serve(t.Context(), c.nothing, pairs...)
		if reason, meta := infoOf(status.Convert(err)); reason != codeInvalid || meta["field"] == "" || sent != nil {
			t.Errorf("%s: %v, %v", name, sent, err)
		}
	}
}

// TestOutcomesAreBounded: the oldest that has ended makes room, and what still runs is
// kept.
func TestOutcomesAreBounded(t *testing.T) {
	c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
	asks, err := fingerprint(&agentv1.SendMessageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, ended, err := c.o.begin("", "owner\x00running", asks)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxOutcomes + 10 {
		if _, err := c.serve(t.Context(), replies("replied"), operationKey, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.o.all); n != maxOutcomes || len(c.o.keys[""]) != n {
		t.Errorf("%d outcomes, %d keys", n, len(c.o.keys[""]))
	}
	ended(resultUpdate("done"), nil)
	for id, want := range map[string]bool{"running": true, "0": false, fmt.Sprint(maxOutcomes + 9): true} {
		if _, err := c.serve(t.Context(), c.nothing, outcomeKey, id); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	for i := range maxOutcomes { // all still run
		_, _, _ = c.o.begin("", fmt.Sprint("owner\x00runs", i), asks)
	}
	if sent, err := c.serve(t.Context(), replies("replied"), operationKey, "one-more"); err != nil || len(sent) != 2 {
		t.Errorf("%v, %v", sent, err)
	}
	if sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "one-more"); err != nil || len(sent) != 1 { // CV-12
		t.Errorf("%v, %v", sent, err)
	}
}

// TestOutcomesEnd: what nobody asks for is forgotten, though no other operation begins.
func TestOutcomesEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
		if _, err := c.serve(t.Context(), replies("replied"), operationKey, "one"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(outcomeLife + 2*time.Second)
		synctest.Wait()
		if n := len(c.o.all) + len(c.o.keys); n != 0 {
			t.Errorf("%d are remembered", n)
		}
	})
}

// TestOutcomesOfOthers (CP-2): however many operations one token has, another's are
// remembered.
func TestOutcomesOfOthers(t *testing.T) {
	o := newOutcomes(time.Now)
	mine, theirs := outcomeCall{o, t, "token a", "token-a"}, outcomeCall{o, t, "token b", "token-b"}
	if _, err := mine.serve(t.Context(), replies("replied"), operationKey, "one"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxOutcomes {
		if _, err := theirs.serve(t.Context(), replies("replied"), operationKey, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if sent, err := mine.serve(t.Context(), mine.nothing, outcomeKey, "one"); err != nil || len(sent) != 1 {
		t.Errorf("what became of it: %v, %v", sent, err)
	}
	if n := len(o.keys["token-b"]); n != maxOutcomes {
		t.Errorf("%d of the other's", n)
	}
}

// TestOutcomeThatGoesOn: who left an operation that goes on without them is told so at
// once, and how it ended once it has.
func TestOutcomeThatGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
		left, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = c.o.serve(metadata.NewIncomingContext(t.Context(), metadata.Pairs(operationKey, "o-1")), caller{actor: "owner"}, &agentv1.SendMessageRequest{},
				func(*agentv1.OperationUpdate) error { return context.Canceled }, func(_ context.Context, to teller) error {
					<-left
					to.goesOn(resultUpdate("outcome_unknown"))
					to.goesOn(resultUpdate("outcome_unknown"))
					<-end
					return to.send(resultUpdate("replied"))
				})
		}()
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			close(left)
		}()
		for _, want := range []string{"outcome_unknown", "replied"} {
			sent, err := c.serve(t.Context(), c.nothing, outcomeKey, "o-1")
			if err != nil || len(sent) != 1 || sent[0].GetResult().GetStatus() != want {
				t.Errorf("%v, %v; want %s", sent, err, want)
			}
			if want == "outcome_unknown" {
				close(end)
				<-ended
			}
		}
	})
}

// TestOutcomeOfAnotherRequest: an id answers the method and the request that it was
// given to, of the same caller.
func TestOutcomeOfAnotherRequest(t *testing.T) {
	c := outcomeCall{newOutcomes(time.Now), t, "owner", ""}
	asks := func(req proto.Message, who caller, key string) error {
		return c.o.serve(metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "o-1")), who, req,
			func(*agentv1.OperationUpdate) error { return nil },
			func(_ context.Context, to teller) error { return to.send(resultUpdate("replied")) })
	}
	owner, first := caller{actor: "owner"}, &agentv1.SendMessageRequest{Business: "b-1", Message: "Hello?"}
	if err := asks(first, owner, operationKey); err != nil {
		t.Fatal(err)
	}
	for name, req := range map[string]proto.Message{
		"another message": &agentv1.SendMessageRequest{Business: "b-1", Message: "Hello!"},
		"another method":  &agentv1.ReconcileRequest{Business: "b-1"},
	} {
		err := asks(req, owner, outcomeKey)
		if reason, meta := infoOf(status.Convert(err)); reason != codeInvalid || meta["field"] != outcomeKey {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := asks(first, caller{actor: "owner", inTask: true, task: "a"}, outcomeKey); status.Code(err) != codes.NotFound {
		t.Errorf("another caller: %v", err)
	}
	if err := asks(proto.CloneOf(first), owner, outcomeKey); err != nil {
		t.Errorf("the same: %v", err)
	}
}
