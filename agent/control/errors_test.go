package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
)

const somewhere = "unix:/run/agent.sock"

// TestErrorsThereAndBack: what a caller of the agent decides by, and reads, crosses
// the wire.
func TestErrorsThereAndBack(t *testing.T) {
	refusal := &agent.Refusal{Status: agent.StatusBlocked, Reason: agent.ReasonOtherTask, Detail: "a task may cancel no sign-in but its own"}
	caused := &agent.Refusal{Status: agent.StatusFailed, Reason: "dns", Err: errors.New("lookup failed: \xff")}
	for _, err := range []error{
		refusal,
		caused,
		&agent.Refusal{Status: agent.StatusFailed, Reason: agent.ReasonInvalidInput},
		fmt.Errorf("cancel the sign-in: %w", refusal),
		fmt.Errorf("sign-in: %w", agent.ErrNotFound),
		fmt.Errorf("read: %w", agent.ErrDamaged),
	} {
		got := fromStatus(t.Context(), somewhere, toStatus(err))
		want := strings.ToValidUTF8(err.Error(), "\uFFFD")
		if got == nil || got.Error() != want {
			t.Errorf("%q came back as %q", want, got)
		}
		var a, b *agent.Refusal
		if errors.As(err, &a) != errors.As(got, &b) || a != nil && (a.Status != b.Status || a.Reason != b.Reason || strings.ToValidUTF8(a.Text(), "\uFFFD") != b.Text()) {
			t.Errorf("%+v came back as %+v", a, b)
		}
		for _, kind := range []error{agent.ErrNotFound, agent.ErrDamaged} {
			if errors.Is(err, kind) != errors.Is(got, kind) {
				t.Errorf("%q: is %q no more", got, kind)
			}
		}
	}
	if err := fromStatus(t.Context(), somewhere, nil); err != nil {
		t.Error(err)
	}
}

// TestErrorsOfTheAgentItself: what went wrong inside is told in the log, not to who
// called.
func TestErrorsOfTheAgentItself(t *testing.T) {
	err := toStatus(errors.New("open /home/somebody/agent.db: disk full"))
	if reason, _ := infoOf(status.Convert(err)); reason != codeInternal || strings.Contains(err.Error(), "/home") {
		t.Errorf("%v", err)
	}
	if again := toStatus(err); again != err {
		t.Errorf("a status became another: %v", again)
	}
	for cause, code := range map[error]codes.Code{
		agent.ErrStopping: codes.Unavailable, context.Canceled: codes.Canceled, context.DeadlineExceeded: codes.DeadlineExceeded,
	} {
		if got := status.Code(toStatus(fmt.Errorf("wait: %w", cause))); got != code {
			t.Errorf("%v: %v", cause, got)
		}
	}
}

// TestErrorsOfTheConnection say where the agent should be, and what to do.
func TestErrorsOfTheConnection(t *testing.T) {
	for _, c := range []struct {
		err  error
		text string
	}{
		{unauthenticated(), "pactctl agent tokens create"},
		{stopping(), "pactctl agent serve"},
		{toStatus(errors.New("a bug")), "log"},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), "pactctl agent serve"},
		{status.Error(codes.Unimplemented, "unknown method"), "another version"},
		{status.Error(codes.ResourceExhausted, "too large"), "too large"},
	} {
		err := fromStatus(t.Context(), somewhere, c.err)
		if !strings.Contains(err.Error(), somewhere) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v", err)
		}
		if agent.ReasonOf(err) != "" {
			t.Errorf("a refusal: %v", err)
		}
	}
	if err := fromStatus(t.Context(), somewhere, scopeRequired(ScopeAdmin, "SetEnabled needs the scope %s", ScopeAdmin)); agent.ReasonOf(err) != ReasonScopeRequired || !strings.Contains(err.Error(), "admin") {
		t.Errorf("%v", err)
	}
	if err := fromStatus(t.Context(), somewhere, invalid("purpose", "is odd")); agent.ReasonOf(err) != agent.ReasonInvalidInput {
		t.Error(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if err := fromStatus(gone, somewhere, status.Error(codes.Canceled, "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
