package egress

import (
	"errors"
	"fmt"
)

// Code says why an exchange failed (TR-8).
type Code string

// The codes. The first three always mean that nothing was sent to the refused
// destination.
const (
	PolicyDenied       Code = "policy_denied"
	InvalidURL         Code = "invalid_url"         // the request's own URL breaks a rule
	DestinationRefused Code = "destination_refused" // no such name, no answer for it, or an internal address

	Timeout            Code = "timeout"
	Network            Code = "network"
	TooLarge           Code = "too_large"
	Aborted            Code = "aborted" // by the caller's context
	TooManyRedirects   Code = "too_many_redirects"
	RedirectNotAllowed Code = "redirect_not_allowed" // a 3xx was answered and not followed
	RateLimited        Code = "rate_limited"         // for callers that turn a 429 into an error; Do never does
)

// Error is what Do fails with. Its text names the origin alone, never a path,
// a query or a header.
type Error struct {
	Code    Code
	Purpose Purpose
	Origin  string // of the hop that failed; empty if its URL has none
	Status  int    // of the answer, if one had begun
	// Sent is false only if certainly no byte of the request left: the other
	// side cannot have acted on it.
	Sent bool
	Err  error
}

func (e *Error) Error() string {
	where := ""
	if e.Origin != "" {
		where = " " + e.Origin
	}
	return fmt.Sprintf("%s%s: %s: %v", e.Purpose, where, e.Code, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of an error from Do, and "" of any other.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
