package signer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/killswitch"
)

// adminDomain is the domain of every ErrorInfo of the AdminService.
const adminDomain = "signer.pact"

// adminRefuse is a refusal with a reason that programs can decide on and a message
// that tells people what to do. Neither may hold a secret.
func adminRefuse(code codes.Code, reason string, meta map[string]string, format string, args ...any) error {
	st := status.Newf(code, format, args...)
	with, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: adminDomain, Metadata: meta})
	if err != nil { // only for an OK status
		return st.Err()
	}
	return with.Err()
}

// adminInvalid refuses a request for one field.
func adminInvalid(field, format string, args ...any) error {
	return adminRefuse(codes.InvalidArgument, "INVALID_REQUEST", map[string]string{"field": field}, "%s: %s", field, fmt.Sprintf(format, args...))
}

func adminNotFound(format string, args ...any) error {
	return adminRefuse(codes.NotFound, "NOT_FOUND", nil, format, args...)
}

// failure is the answer to an error of a call. What a method refused stands;
// anything else is logged, and the caller learns only which part failed.
func (a *Admin) failure(ctx context.Context, method string, err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, custody.ErrUnavailable): // also if custody let the deadline pass
	case errors.Is(err, context.Canceled):
		return status.FromContextError(context.Canceled).Err()
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "admin call failed", slog.String("method", method), slog.Any("error", err))
	if errors.Is(err, ErrOtherSubjectKey) {
		return adminRefuse(codes.FailedPrecondition, "OTHER_SUBJECT_KEY", nil, "nobody gets a subject now: %v", ErrOtherSubjectKey)
	}
	what := "the signer's store"
	switch {
	case errors.Is(err, killswitch.ErrUnknownStore):
		return adminRefuse(codes.Unavailable, "UNKNOWN_STORE", nil, "the signer's store is not the one that custody knows, or not whole: pactctl state status says what to do")
	case errors.Is(err, custody.ErrUnavailable):
		what = "custody, which holds the keys,"
	case errors.Is(err, killswitch.ErrNoPermit):
		what = "this replica, which cannot tell the kill switch's state,"
	}
	return adminRefuse(codes.Unavailable, "UNAVAILABLE", nil, "%s cannot answer now: try again; pactctl state status and the signer's log say more", what)
}
