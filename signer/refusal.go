package signer

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/killswitch"
)

// ErrorDomain is the domain of every google.rpc.ErrorInfo of ours.
const ErrorDomain = "signer.pact"

// Reason is why the contract refuses a request: the reason of its ErrorInfo. On
// REST it alone decides the status.
type Reason string

// The reasons, in the order in which they are looked for. DISABLED comes again
// after UNAUTHORIZED for the caller, and last for the audience.
const (
	ReasonInvalidRequest        Reason = "INVALID_REQUEST"
	ReasonDisabled              Reason = "DISABLED"
	ReasonUnauthorized          Reason = "UNAUTHORIZED"
	ReasonRateLimited           Reason = "RATE_LIMITED"
	ReasonAudienceNotRegistered Reason = "AUDIENCE_NOT_REGISTERED"
	ReasonUnavailable           Reason = "UNAVAILABLE"
)

// answer is what a reason is on the wire. message is all that a caller is told.
type answer struct {
	code    codes.Code
	status  int
	word    string
	message string
}

var answers = map[Reason]answer{
	ReasonInvalidRequest:        {codes.InvalidArgument, http.StatusBadRequest, "invalid_request", "the request is malformed"},
	ReasonDisabled:              {codes.PermissionDenied, http.StatusForbidden, "disabled", "the signer is disabled"},
	ReasonUnauthorized:          {codes.Unauthenticated, http.StatusUnauthorized, "unauthorized", "the caller is not accepted"},
	ReasonRateLimited:           {codes.ResourceExhausted, http.StatusTooManyRequests, "rate_limited", "too many requests"},
	ReasonAudienceNotRegistered: {codes.FailedPrecondition, http.StatusUnprocessableEntity, "audience_not_registered", "no registration for that audience"},
	ReasonUnavailable:           {codes.Unavailable, http.StatusServiceUnavailable, "unavailable", "the signer cannot answer now"},
}

// Refusal is the contract's answer to a request that it does not serve. It
// converts to a gRPC status; the cause is for the operator alone.
type Refusal struct {
	Reason Reason
	// Retry is after how long to come back; for RATE_LIMITED and UNAVAILABLE.
	Retry time.Duration
	// Detail, if set, replaces the message of an INVALID_REQUEST on gRPC: it
	// names the field and the fix.
	Detail string

	cause error
}

func (r *Refusal) Error() string {
	if r.cause != nil {
		return string(r.Reason) + ": " + r.cause.Error()
	}
	return string(r.Reason)
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.cause }

// GRPCStatus makes it a status with ErrorInfo and, where it says when to come
// back, RetryInfo. The cause is not in it.
func (r *Refusal) GRPCStatus() *status.Status {
	a := answers[r.Reason]
	message := a.message
	if r.Detail != "" {
		message = r.Detail
	}
	st := status.New(a.code, message)
	with, err := st.WithDetails(&errdetails.ErrorInfo{Reason: string(r.Reason), Domain: ErrorDomain})
	if err == nil && r.Retry > 0 {
		with, err = with.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.Retry)})
	}
	if err != nil {
		return st // details of ours always encode
	}
	return with
}

func invalid(detail string) *Refusal {
	return &Refusal{Reason: ReasonInvalidRequest, Detail: detail}
}

func unauthorized(cause error) *Refusal { return &Refusal{Reason: ReasonUnauthorized, cause: cause} }

func disabled(cause error) *Refusal { return &Refusal{Reason: ReasonDisabled, cause: cause} }

// unavailable asks callers to come back at different times: after 1 to 5 s.
func unavailable(cause error) *Refusal {
	return &Refusal{Reason: ReasonUnavailable, Retry: time.Duration(1+rand.IntN(5)) * time.Second, cause: cause}
}

func limited(after time.Duration) *Refusal {
	return &Refusal{Reason: ReasonRateLimited, Retry: max(after, time.Millisecond)}
}

// refusalOf turns an error of the store, the guard or custody into a refusal.
// Whatever is not known to be something else is 503: no other error may become
// a 403, a 401 or a 500.
func refusalOf(err error) *Refusal {
	var (
		r       *Refusal
		killed  *killswitch.KilledError
		refused *RefusedError
		limit   *LimitedError
	)
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &killed):
		return disabled(err)
	case errors.As(err, &refused):
		return unauthorized(err)
	case errors.As(err, &limit):
		return limited(limit.RetryAfter)
	case errors.Is(err, ErrFull):
		return &Refusal{Reason: ReasonRateLimited, Retry: fullRetry, cause: err}
	}
	return unavailable(err)
}

// fullRetry is when to come back to an issuer that has as many devices as it
// may have.
const fullRetry = time.Minute
