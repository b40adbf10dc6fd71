package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The reasons of A2A errors.
const (
	invalidParams = "INVALID_PARAMS"
	contentType   = "CONTENT_TYPE_NOT_SUPPORTED"
	unsupported   = "UNSUPPORTED_OPERATION"
	noPush        = "PUSH_NOTIFICATION_NOT_SUPPORTED"
	taskNotFound  = "TASK_NOT_FOUND"
)

// reasons is the protocol's table of A2A errors.
var reasons = map[string]struct {
	http   int
	status string
}{
	invalidParams: {http.StatusBadRequest, "INVALID_ARGUMENT"},
	contentType:   {http.StatusBadRequest, "INVALID_ARGUMENT"},
	unsupported:   {http.StatusBadRequest, "FAILED_PRECONDITION"},
	noPush:        {http.StatusBadRequest, "FAILED_PRECONDITION"},
	taskNotFound:  {http.StatusNotFound, "NOT_FOUND"},
}

// a2aError is the error of an A2A answer.
type a2aError struct {
	Code    int           `json:"code"`
	Status  string        `json:"status"`
	Message string        `json:"message"`
	Details []errorDetail `json:"details"`
}

type errorDetail struct {
	Type   string `json:"@type"`
	Reason string `json:"reason"`
	Domain string `json:"domain"`
}

func (e *a2aError) reason() string {
	if len(e.Details) == 0 {
		return ""
	}
	return e.Details[0].Reason
}

// a2a decodes an A2A error.
func (a *answer) a2a() (a2aError, error) {
	var body struct {
		Error *a2aError `json:"error"`
	}
	if err := a.object(&body); err != nil {
		return a2aError{}, err
	}
	if body.Error == nil {
		return a2aError{}, fmt.Errorf("%s: %s: the body has no error", a.asked, a.summary())
	}
	return *body.Error, nil
}

// wants is nil if the status is one of those.
func (a *answer) wants(statuses ...int) error {
	if slices.Contains(statuses, a.status) {
		return nil
	}
	return a.not(oneOf(statuses))
}

// not is the error of an answer that should have been another.
func (a *answer) not(expected string) error {
	return fmt.Errorf("%s: %s: must be %s", a.asked, a.summary(), expected)
}

// refuses is nil if the answer is an A2A error of that reason, with its HTTP status.
// message-errors looks at the rest of the error.
func (a *answer) refuses(reason string) error {
	status := reasons[reason].http
	e, err := a.a2a()
	if err != nil || a.status != status || e.reason() != reason {
		return a.not(fmt.Sprintf("%d %s", status, reason))
	}
	return nil
}

// unauthorized is nil if the answer is a 401. auth-challenge looks at the rest.
func (a *answer) unauthorized() error { return a.wants(http.StatusUnauthorized) }

// The challenges of a 401.
const (
	challengeIdentity   = `Bearer realm="a2a"`
	challengeDelegation = `Bearer realm="a2a", error="invalid_token"`
)

// challenges is nil if the answer is a 401 with exactly that challenge and no A2A body.
func (a *answer) challenges(challenge string) error {
	if err := a.unauthorized(); err != nil {
		return err
	}
	switch got := a.header.Values("WWW-Authenticate"); {
	case len(got) == 0:
		return fmt.Errorf("%s: 401 without WWW-Authenticate: must be %s", a.asked, challenge)
	case len(got) > 1 || got[0] != challenge:
		return fmt.Errorf("%s: 401 with WWW-Authenticate: %s: must be %s", a.asked, clip(strings.Join(got, ", ")), challenge)
	}
	return a.noA2A()
}

// noA2A is nil unless the body is an A2A error, message or task.
func (a *answer) noA2A() error {
	var body map[string]jsontext.Value
	if json.Unmarshal(a.body, &body) == nil {
		for _, member := range []string{"error", "message", "task", "tasks"} {
			if body[member].Kind() == '{' || body[member].Kind() == '[' {
				return fmt.Errorf("%s: %d with an A2A body: must have none", a.asked, a.status)
			}
		}
	}
	if a.mediaType() == typeA2A && len(bytes.TrimSpace(a.body)) > 0 {
		return fmt.Errorf("%s: %d with a body of %s: must have none", a.asked, a.status, typeA2A)
	}
	return nil
}

const typeA2A = "application/a2a+json"

// oauth is nil if the answer is an OAuth error with one of the codes: 401 for
// invalid_client, 400 for all others. oauth-errors looks at the rest.
func (a *answer) oauth(codes ...string) error {
	code, err := a.oauthCode()
	if err != nil || !slices.Contains(codes, code) || a.status != oauthStatus(code) {
		expected := make([]string, len(codes))
		for i, c := range codes {
			expected[i] = fmt.Sprintf("%d %s", oauthStatus(c), c)
		}
		return a.not(oneOf(expected))
	}
	return nil
}

func oauthStatus(code string) int {
	if code == "invalid_client" {
		return http.StatusUnauthorized
	}
	return http.StatusBadRequest
}

var errNoOAuthError = errors.New("no OAuth error")

// oauthCode is the error of an OAuth answer.
func (a *answer) oauthCode() (string, error) {
	var body struct {
		Error string `json:"error"`
	}
	if err := a.object(&body); err != nil {
		return "", err
	}
	if body.Error == "" {
		return "", errNoOAuthError
	}
	return body.Error, nil
}

// oneOf lists alternatives.
func oneOf[T any](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, " or ")
}
