package sandbox

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"
)

// maxBody bounds every request body, in bytes.
const maxBody = 256 << 10

const (
	typeA2A  = "application/a2a+json"
	typeJSON = "application/json"
)

// a2aError is a refusal with an A2A body.
type a2aError struct {
	status  int    // HTTP
	code    string // of google.rpc
	reason  string
	message string
}

func invalidParams(message string) *a2aError {
	return &a2aError{http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_PARAMS", message}
}

func unsupported(message string) *a2aError {
	return &a2aError{http.StatusBadRequest, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION", message}
}

func taskNotFound(message string) *a2aError {
	return &a2aError{http.StatusNotFound, "NOT_FOUND", "TASK_NOT_FOUND", message}
}

var (
	errContentType = &a2aError{http.StatusBadRequest, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED", "Content type not supported"}
	errPush        = &a2aError{http.StatusBadRequest, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED", "Push notifications are not supported"}
	errInternal    = &a2aError{http.StatusInternalServerError, "INTERNAL", "INTERNAL", "Internal error"}
	errNoReply     = invalidParams("There is no reply yet to this messageId")
	errOtherUser   = invalidParams("The context or message belongs to another user of the business")

	errSubjectNotIssuer = errors.New("sub is not iss")
)

type errorBody struct {
	Error errorStatus `json:"error"`
}

type errorStatus struct {
	Code    int           `json:"code"`
	Status  string        `json:"status"`
	Message string        `json:"message"`
	Details []errorDetail `json:"details,omitempty"`
}

type errorDetail struct {
	Type   string `json:"@type"`
	Reason string `json:"reason"`
	Domain string `json:"domain"`
}

// Error is for whoever returns the refusal as an error.
func (e *a2aError) Error() string { return e.reason + ": " + e.message }

// failA2A answers with the refusal that err is. What is none is our failure: it is
// logged, and the caller is told no more than that.
func (s *Sandbox) failA2A(w http.ResponseWriter, err error) {
	var refusal *a2aError
	if !errors.As(err, &refusal) || errors.Is(err, errStore) {
		s.log.Error("request failed", "error", err)
		refusal = errInternal
	}
	refusal.write(w)
}

func (e *a2aError) write(w http.ResponseWriter) {
	status := errorStatus{
		Code: e.status, Status: e.code, Message: e.message,
		Details: []errorDetail{{Type: "type.googleapis.com/google.rpc.ErrorInfo", Reason: e.reason, Domain: "a2a-protocol.org"}},
	}
	contentType := typeA2A
	if spoiled, ok := w.(*spoiledErrors); ok {
		contentType = spoiled.envelope(&status)
	}
	writeJSON(w, e.status, contentType, errorBody{status})
}

// writeJSON answers with a value of ours, which always encodes.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	writeBody(w, status, contentType, body)
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away is nobody's error
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		w.Header().Del("Connection") // of closeUnread
	}
	return body, err
}

// mediaType is the type of a Content-Type header without its parameters.
func mediaType(header string) string {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		return ""
	}
	return t
}

// listTasks answers GET tasks: there never are any, a turn is done when it is
// answered.
func (s *Sandbox) listTasks(w http.ResponseWriter, r *http.Request, _ *business, _ caller) {
	ctx, size := r.Context(), 50
	query, malformed := taskQuery(r.URL.RawQuery)
	if malformed && !s.faults.hit(ctx, "lax-page-size") && !s.faults.hit(ctx, "lax-page-size-digits") {
		invalidParams("Invalid pageSize").write(w)
		return
	}
	for name, values := range query {
		if name != "pageSize" {
			if s.faults.hit(ctx, "strict-query") {
				invalidParams("Unknown parameter").write(w)
				return
			}
			continue
		}
		wanted, valid := parsePageSize(values)
		if n, ok := digitsFirst(values); ok && !valid && s.faults.hit(ctx, "lax-page-size-digits") {
			wanted, valid = n, true
		}
		if !valid && !s.faults.hit(ctx, "lax-page-size") {
			invalidParams("Invalid pageSize").write(w)
			return
		}
		if valid {
			size = wanted
		}
	}
	if s.faults.hit(ctx, "tasks-shape") {
		writeJSON(w, http.StatusOK, typeA2A, []struct{}{})
		return
	}
	writeJSON(w, http.StatusOK, typeA2A, struct {
		Tasks         []struct{} `json:"tasks"`
		NextPageToken string     `json:"nextPageToken"`
		PageSize      int        `json:"pageSize"`
		TotalSize     int        `json:"totalSize"`
	}{PageSize: size})
}

// taskQuery reads the query of GET tasks. It is malformed if a part that does not parse
// may be about pageSize; other such parts are ignored, as other parameters are.
func taskQuery(raw string) (query url.Values, malformed bool) {
	query = url.Values{}
	for part := range strings.SplitSeq(raw, "&") {
		values, err := url.ParseQuery(part)
		if err != nil {
			name, _, _ := strings.Cut(part, "=")
			name, _ = url.QueryUnescape(name)
			malformed = malformed || name == "pageSize" || strings.Contains(part, "pageSize")
		}
		for name, value := range values {
			query[name] = append(query[name], value...)
		}
	}
	return query, malformed
}

// parsePageSize reads the one pageSize: decimal digits, 1 to 100.
func parsePageSize(values []string) (int, bool) {
	if len(values) != 1 || values[0] == "" || len(values[0]) > 3 {
		return 0, false
	}
	n := 0
	for _, digit := range []byte(values[0]) {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + int(digit-'0')
	}
	return n, n >= 1 && n <= 100
}
