package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/agent"
)

// domain is that of every ErrorInfo.
const domain = "agent.pact"

// The reasons of an ErrorInfo (agent.proto).
const (
	codeInvalid         = "INVALID_REQUEST"
	codeUnauthenticated = "UNAUTHENTICATED"
	codeScope           = "SCOPE_REQUIRED"
	codeNotFound        = "NOT_FOUND"
	codeRefused         = "REFUSED"
	codeDamaged         = "DAMAGED"
	codeStopping        = "STOPPING"
	codeNoMethod        = "NO_SUCH_METHOD"
	codeTooMany         = "TOO_MANY_CALLS"
	codeInternal        = "INTERNAL"
)

// ReasonScopeRequired is the reason of a Refusal of what the caller's token may not do.
const ReasonScopeRequired agent.Reason = "scope_required"

// ErrUnreachable: no agent answers where one should.
var ErrUnreachable = errors.New("no agent answers")

// statusOf is a gRPC status with its ErrorInfo.
func statusOf(code codes.Code, reason string, meta map[string]string, text string) error {
	meta = maps.Clone(meta)
	for k, v := range meta {
		meta[k] = strings.ToValidUTF8(v, "\uFFFD")
	}
	st := status.New(code, strings.ToValidUTF8(text, "\uFFFD"))
	if with, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: domain, Metadata: meta}); err == nil {
		st = with
	}
	return st.Err()
}

// toStatus is an error of the agent as the control plane answers it. What is neither
// the caller's nor known is told in the log alone.
func toStatus(err error) error {
	var r *agent.Refusal
	if _, told := status.FromError(err); told {
		return err
	}
	switch {
	case errors.As(err, &r):
		return statusOf(codes.FailedPrecondition, codeRefused, map[string]string{
			"status": string(r.Status), "reason": r.Reason, "detail": r.Text(),
		}, err.Error())
	case errors.Is(err, agent.ErrNotFound):
		return statusOf(codes.NotFound, codeNotFound, nil, err.Error())
	case errors.Is(err, agent.ErrDamaged):
		return statusOf(codes.DataLoss, codeDamaged, nil, err.Error())
	case errors.Is(err, agent.ErrStopping):
		return statusOf(codes.Unavailable, codeStopping, nil, "the agent stops: ask again")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return statusOf(codes.Internal, codeInternal, nil, "the agent failed: its log says why")
}

// remoteError is an error of the agent as the caller of an *agent.Agent would have it:
// with its text, and with what can be asked of it.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// fromStatus is the way back, for a client of the agent at target. ctx is the call's.
func fromStatus(ctx context.Context, target string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the agent at %s: %w", target, ctx.Err())
	}
	st, _ := status.FromError(err)
	reason, meta := infoOf(st)
	switch reason {
	case codeRefused:
		r := &agent.Refusal{Status: agent.Status(meta["status"]), Reason: meta["reason"], Detail: meta["detail"]}
		if st.Message() == r.Error() {
			return r
		}
		return &remoteError{st.Message(), r}
	case codeInvalid:
		r := &agent.Refusal{Status: agent.StatusFailed, Reason: agent.ReasonInvalidInput, Detail: st.Message()}
		switch missing := meta[missingKey] != ""; {
		case missing && (meta["field"] == "id" || meta["field"] == "conversation"): // no record has none
			return &remoteError{st.Message(), agent.ErrNotFound}
		case missing && meta["field"] == "message":
			r.Reason = agent.ReasonBlankMessage
		case meta[recordKey] != "":
			return &remoteError{st.Message(), agent.ErrNotFound}
		case meta[becauseKey] != "":
			r.Reason = meta[becauseKey]
		}
		return r
	case codeNotFound:
		return &remoteError{st.Message(), agent.ErrNotFound}
	case codeDamaged:
		return &remoteError{st.Message(), agent.ErrDamaged}
	case codeScope:
		return &agent.Refusal{Status: agent.StatusBlocked, Reason: ReasonScopeRequired, Detail: st.Message()}
	case codeLagging:
		return &remoteError{st.Message(), agent.ErrLagging}
	case codeUnauthenticated:
		return fmt.Errorf("the agent at %s does not accept the token: it is wrong, revoked or over; pactctl agent tokens create makes another", target)
	case codeStopping:
		return fmt.Errorf("the agent at %s stops: start it again with pactctl agent serve", target)
	}
	switch st.Code() {
	case codes.Internal:
		return fmt.Errorf("the agent at %s failed: its log says why", target)
	case codes.Unavailable:
		return fmt.Errorf("%w: the agent at %s ended before it answered; what was asked of it may have been done: "+
			"start it again with pactctl agent serve, and look before you repeat it", ErrUnreachable, target)
	case codes.Unimplemented:
		return fmt.Errorf("the agent at %s is of another version, and does not know this: start it again with pactctl agent serve", target)
	}
	return fmt.Errorf("the agent at %s: %s", target, st.Message())
}

// infoOf is what a status says in its ErrorInfo, if it has ours.
func infoOf(st *status.Status) (reason string, meta map[string]string) {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == domain {
			return info.Reason, info.Metadata
		}
	}
	return "", nil
}
