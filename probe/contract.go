package probe

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
)

// The calls of the contract (docs/contract.md).
const (
	pathEnroll = "/pact/enroll"
	pathStatus = "/pact/status"
	pathSign   = "/pact/sign"
)

// words are the contract's refusals, by status.
var words = map[int]string{
	400: "invalid_request", 401: "unauthorized", 403: "disabled", 422: "audience_not_registered", 429: "rate_limited", 503: "unavailable",
}

// post calls an endpoint of the contract. An error means that nobody answered.
func (r *round) post(ctx context.Context, w *way, path, authorization string, body any) (answer, error) {
	content, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return answer{}, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if authorization != "" {
		header.Set("Authorization", authorization)
		r.secret(authorization)
	}
	a, err := w.do(ctx, http.MethodPost, r.cfg.Signer+path, header, content)
	if err == nil {
		r.answered.Store(true)
	}
	return a, err
}

// authorization is the caller's own for one call.
func (p *Probe) authorization(path string) (string, error) {
	if p.cfg.Credential != nil {
		return "Bearer " + p.cfg.Credential.value, nil
	}
	a, err := p.cfg.Device.assertion(p.cfg.Signer+path, p.cfg.Now(), "ES256")
	return deviceScheme + a, err
}

const deviceScheme = "PACT-Device "

// call calls an endpoint as the caller that is known.
func (r *round) call(ctx context.Context, path string, body any) (answer, error) {
	authorization, err := r.authorization(path)
	if err != nil {
		return answer{}, err
	}
	return r.post(ctx, r.way, path, authorization, body)
}

// isJSON says whether the answer claims to be JSON.
func (a answer) isJSON() bool {
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// read decodes the JSON of a 200.
func (a answer) read(into any) error {
	if !a.isJSON() {
		return fmt.Errorf("200 with content that is not JSON: is that the signer?")
	}
	if json.Unmarshal(a.body, into) != nil { // whose error would quote it
		return fmt.Errorf("200 with content that is not the contract's")
	}
	return nil
}

// refused says whether it is the contract's refusal of that status, to the letter.
func (a answer) refused(status int) bool {
	var body struct {
		Error string `json:"error"`
	}
	return a.status == status && a.isJSON() && json.Unmarshal(a.body, &body, json.RejectUnknownMembers(true)) == nil &&
		body.Error == words[status]
}

// String tells an answer without repeating what it holds.
func (a answer) String() string {
	switch {
	case a.status == http.StatusOK && a.isJSON():
		return "200"
	case words[a.status] != "" && a.refused(a.status):
		return fmt.Sprintf("%d %s", a.status, words[a.status])
	}
	return fmt.Sprintf("%d, which is not in the signer's words", a.status)
}

// clockOff says how far the clock here is from the one that answered, if that is
// more than an assertion or a token bears.
func (r *round) clockOff(a answer) string {
	theirs, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return ""
	}
	off := r.cfg.Now().Sub(theirs).Round(time.Second)
	switch {
	case off > maxClockOff:
		return fmt.Sprintf("; the clock here is %v ahead of the signer's", off)
	case off < -maxClockOff:
		return fmt.Sprintf("; the clock here is %v behind the signer's", -off)
	}
	return ""
}

// maxClockOff is less than the 30 s by which clocks may differ, for Date has whole
// seconds.
const maxClockOff = 25 * time.Second
