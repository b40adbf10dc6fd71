package control

import (
	"fmt"

	"google.golang.org/grpc/codes"
)

// codeLagging is the reason by which a watch ends that lost changes.
const codeLagging = "LAGGING"

// invalid refuses a request for one field. The text holds nothing of its value.
func invalid(field, format string, args ...any) error {
	return statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": field}, field+": "+fmt.Sprintf(format, args...))
}

func unauthenticated() error {
	return statusOf(codes.Unauthenticated, codeUnauthenticated, nil,
		`the token is missing or not accepted: send "authorization: Bearer <token>" (pactctl agent tokens create makes one)`)
}

// scopeRequired refuses what takes another scope than the caller's.
func scopeRequired(need Scope, format string, args ...any) error {
	return statusOf(codes.PermissionDenied, codeScope, map[string]string{"scope": string(need)}, fmt.Sprintf(format, args...))
}

func noSuchMethod(text string) error {
	return statusOf(codes.Unimplemented, codeNoMethod, nil, text)
}

func tooManyCalls(actor string) error {
	return statusOf(codes.ResourceExhausted, codeTooMany, nil, fmt.Sprintf("%s has %d calls of this kind under way, which is the most: wait until one has ended", actor, maxCalls))
}

func tooManyConnections(actor string, most int) error {
	return statusOf(codes.ResourceExhausted, codeTooMany, nil, fmt.Sprintf("%s has %d connections with calls under way, which is the most: make more calls on each", actor, most))
}

func tooManyRequests(actor string) error {
	return statusOf(codes.ResourceExhausted, codeTooMany, nil, fmt.Sprintf("%s has %d requests under way, which is the most: wait until one has ended", actor, maxRequests))
}

func stopping() error {
	return statusOf(codes.Unavailable, codeStopping, nil, "the agent stops: ask again")
}
