package agent

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// CheckText is the part of admission that looks at the text alone (AD-1): not
// blank, not too long, nothing sensitive. nil is admitted.
func CheckText(text string) *Problem {
	if strings.TrimSpace(text) == "" {
		return &Problem{ReasonBlankMessage, "text", "is blank"}
	}
	if n := len([]rune(text)); n > maxMessage {
		return &Problem{ReasonMessageTooLong, "text", fmt.Sprintf("has %d characters, and %d is the most", n, maxMessage)}
	}
	if what, found := Sensitive(text); found {
		return &Problem{ReasonSensitiveContent, "text", "holds " + what}
	}
	return nil
}

// CheckRequest holds the body of a message:send to protocol.md, as a Provider
// does: each problem's reason is the A2A error that it must be answered with.
// text is that of the text parts.
func CheckRequest(body []byte) (text string, problems []Problem) {
	r := &reader{reason: A2AInvalidParams}
	o, err := parseObject(body)
	if err != nil {
		r.add(r.reason, "", "%v", err)
		return "", r.problems
	}
	m, ok := r.object(o, "", "message", true)
	if !ok {
		return "", r.problems
	}
	r.text(m, "message.", "messageId", true)
	r.text(m, "message.", "contextId", false)
	if role := r.text(m, "message.", "role", true); role != "" && role != roleUser {
		r.add(r.reason, "message.role", "must be %s", roleUser)
	}
	if _, ok := m.get("taskId"); ok {
		r.add(A2ATaskNotFound, "message.taskId", "PACT has no tasks to go on with")
	}
	var texts []string
	for i, p := range r.objects(m, "message.", "parts", true) {
		path := fmt.Sprintf("message.parts[%d]", i)
		if s, ok := r.textPart(p, path); ok {
			texts = append(texts, s)
		}
	}
	text = strings.Join(texts, "\n")
	if strings.TrimSpace(text) == "" {
		r.add(r.reason, "message.parts", "has no text that is not blank")
	}
	return text, r.problems
}

// textPart reads {text, mediaType?, filename?, metadata?}; another kind of part
// is not supported, another member of a text part is invalid.
func (r *reader) textPart(p object, path string) (string, bool) {
	for _, kind := range []string{"data", "raw", "url"} {
		if _, ok := p.get(kind); ok {
			r.add(A2AContentType, path, "is a %s part, and only text is supported", kind)
			return "", false
		}
	}
	s := r.text(p, path+".", "text", true)
	if media := r.text(p, path+".", "mediaType", false); media != "" && media != "text/plain" {
		r.add(A2AContentType, path+".mediaType", "must be text/plain")
	}
	r.text(p, path+".", "filename", false)
	r.member(p, path+".", "metadata", false, jsontext.Kind('{'), "an object")
	for _, m := range p {
		switch m.name {
		case "text", "mediaType", "filename", "metadata":
		default:
			r.add(A2AInvalidParams, path+"."+m.name, "is not a member of a text part")
		}
	}
	return s, true
}

// a2aErrors is the table of protocol.md: what belongs to a reason.
var a2aErrors = map[string]struct {
	code   int64
	status string
}{
	A2AInvalidParams:        {400, "INVALID_ARGUMENT"},
	A2AContentType:          {400, "INVALID_ARGUMENT"},
	A2AUnsupportedOperation: {400, "FAILED_PRECONDITION"},
	A2APushNotSupported:     {400, "FAILED_PRECONDITION"},
	A2ATaskNotFound:         {404, "NOT_FOUND"},
	A2AInternal:             {500, "INTERNAL"},
}

// CheckA2AError holds an A2A error body to protocol.md, more strictly than
// ParseReply, which must live with what businesses send: a known reason in
// details[0], and the code and status that belong to it.
func CheckA2AError(body []byte) (reason string, problems []Problem) {
	r := &reader{reason: "invalid_error"}
	o, err := parseObject(body)
	if err != nil {
		r.add(r.reason, "", "%v", err)
		return "", r.problems
	}
	e, ok := r.object(o, "", "error", true)
	if !ok {
		return "", r.problems
	}
	code, _ := r.integer(e, "error.", "code")
	status := r.text(e, "error.", "status", true)
	r.text(e, "error.", "message", true)
	details := r.objects(e, "error.", "details", true)
	if len(details) == 0 || details[0] == nil {
		r.add(r.reason, "error.details", "must begin with an ErrorInfo")
		return "", r.problems
	}
	const path = "error.details[0]."
	reason = r.text(details[0], path, "reason", true)
	for _, m := range []struct{ name, want string }{{"@type", "type.googleapis.com/google.rpc.ErrorInfo"}, {"domain", "a2a-protocol.org"}} {
		if got := r.text(details[0], path, m.name, true); got != "" && got != m.want {
			r.add(r.reason, path+m.name, "must be %q", m.want)
		}
	}
	want, known := a2aErrors[reason]
	switch {
	case reason == "":
	case !known:
		r.add(r.reason, path+"reason", "%q is not one of PACT's", clean(reason, maxName))
	default:
		if code != 0 && code != want.code {
			r.add(r.reason, "error.code", "%s has %d", reason, want.code)
		}
		if status != "" && status != want.status {
			r.add(r.reason, "error.status", "%s has %s", reason, want.status)
		}
	}
	return reason, r.problems
}
