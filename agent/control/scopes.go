package control

import (
	"fmt"
	"slices"
	"strings"
)

// Scope is what a caller of the control plane may do.
type Scope string

// The scopes. Of the first four each has all before it. A caller of scope assistant
// acts in tasks of the owner alone: it may ask, and never confirm, decide or sign in.
const (
	ScopeRead      Scope = "read"
	ScopeWrite     Scope = "write"
	ScopeOperator  Scope = "operator"
	ScopeAdmin     Scope = "admin"
	ScopeAssistant Scope = "assistant"
)

// Scopes lists all of them.
func Scopes() []Scope {
	return []Scope{ScopeRead, ScopeWrite, ScopeOperator, ScopeAdmin, ScopeAssistant}
}

// ParseScope reads a scope's name.
func ParseScope(s string) (Scope, error) {
	if slices.Contains(Scopes(), Scope(s)) {
		return Scope(s), nil
	}
	names := make([]string, len(Scopes()))
	for i, known := range Scopes() {
		names[i] = string(known)
	}
	return "", fmt.Errorf("scope: %q is unknown: say %s", s, strings.Join(names, ", "))
}

// rank orders the scopes that have one another; others have none.
func (s Scope) rank() int {
	return slices.Index([]Scope{ScopeRead, ScopeWrite, ScopeOperator, ScopeAdmin}, s) + 1
}

// Method is a method of the control plane and who may call it.
type Method struct {
	Name  string // of the service
	REST  string // HTTP method and path
	Scope Scope  // the least that it takes
	// Task: a task of the owner may call it, if the scope of who acts in it does; an
	// assistant's does.
	Task bool
	// Stream: the answer is a stream.
	Stream bool
}

// Methods lists the methods of the service, as agent.proto has them. One that is not
// here is refused.
func Methods() []Method { return slices.Clone(methods) }

var methods = []Method{
	{"GetStatus", "GET /v1/status", ScopeRead, true, false},
	{"GetSettings", "GET /v1/settings", ScopeRead, true, false},
	{"UpdateSettings", "POST /v1/settings", ScopeAdmin, false, false},
	{"ListProviders", "GET /v1/providers", ScopeRead, true, false},
	{"SetProvider", "POST /v1/providers", ScopeAdmin, false, false},
	{"RemoveProvider", "POST /v1/providers:remove", ScopeAdmin, false, false},
	{"SetCredential", "POST /v1/identity:setCredential", ScopeAdmin, false, false},
	{"EnrollDeviceKey", "POST /v1/identity:deviceKey", ScopeAdmin, false, false},
	{"ListBusinesses", "GET /v1/businesses", ScopeRead, true, false},
	{"DiscoverBusiness", "POST /v1/businesses:discover", ScopeWrite, true, false},
	{"SendMessage", "POST /v1/conversations:send", ScopeOperator, true, true},
	{"Reconcile", "POST /v1/conversations:reconcile", ScopeOperator, true, true},
	{"ListConversations", "GET /v1/conversations", ScopeRead, true, false},
	{"GetConversation", "GET /v1/conversations/{id}", ScopeRead, true, false},
	{"GetTranscript", "GET /v1/conversations/{conversation}:transcript", ScopeRead, true, false},
	{"StartAuthorization", "POST /v1/authorizations:start", ScopeOperator, false, true},
	{"ListAuthorizations", "GET /v1/authorizations", ScopeRead, true, false},
	{"GetAuthorization", "GET /v1/authorizations/{id}", ScopeRead, true, false},
	{"GetAuthorizationStatus", "GET /v1/authorizations/{id}:status", ScopeRead, true, false},
	{"WaitAuthorization", "GET /v1/authorizations/{id}:wait", ScopeRead, true, true},
	{"GetSignIn", "POST /v1/authorizations/{id}:signIn", ScopeOperator, false, false},
	{"CancelAuthorization", "POST /v1/authorizations/{id}:cancel", ScopeOperator, false, false},
	{"ListGrants", "GET /v1/grants", ScopeRead, true, false},
	{"DisconnectGrant", "POST /v1/grants/{id}:disconnect", ScopeOperator, false, false},
	{"ListReceipts", "GET /v1/receipts", ScopeRead, true, false},
	{"GetReceipt", "GET /v1/receipts/{id}", ScopeRead, true, false},
	{"VerifyReceipt", "POST /v1/receipts/{id}:verify", ScopeOperator, false, false},
	{"ListReviews", "GET /v1/reviews", ScopeRead, true, false},
	{"GetReview", "GET /v1/reviews/{id}", ScopeRead, true, false},
	{"AcknowledgeEvidence", "POST /v1/reviews/{id}:acknowledge", ScopeOperator, false, false},
	{"ListApprovals", "GET /v1/approvals", ScopeRead, true, false},
	{"GetApproval", "GET /v1/approvals/{id}", ScopeRead, true, false},
	{"DecideApproval", "POST /v1/approvals/{id}:decide", ScopeAdmin, false, true},
	{"RunDoctor", "POST /v1/doctor", ScopeOperator, false, false},
	{"WatchEvents", "GET /v1/events", ScopeRead, true, true},
}

// methodOf finds a method by its full name on gRPC. What has none may be anything, and is
// named so.
func methodOf(full string) (Method, bool) {
	name := full[strings.LastIndexByte(full, '/')+1:]
	i := slices.IndexFunc(methods, func(m Method) bool { return m.Name == name })
	if i < 0 {
		return Method{Name: "unknown"}, false
	}
	return methods[i], true
}
