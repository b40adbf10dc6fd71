package agent

import (
	"fmt"
	"mime"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The media types that a reply may have (TR-6).
const (
	TypeJSON = "application/json"
	TypeA2A  = "application/a2a+json"
)

// Roles and the one task state that means anything here.
const (
	roleUser      = "ROLE_USER"
	roleAgent     = "ROLE_AGENT"
	stateAuthNeed = "TASK_STATE_AUTH_REQUIRED"
)

// missingScopesMember names the permissions that a step-up task waits for.
const missingScopesMember = "pact.missingScopes"

// BuildMessage returns the body of message:send (CV-5): one text part from the
// user. contextID is empty unless the business minted one. The same arguments
// give the same bytes.
func BuildMessage(messageID, contextID, text string) ([]byte, error) {
	type part struct {
		Text      string `json:"text"`
		MediaType string `json:"mediaType"`
	}
	type message struct {
		MessageID string `json:"messageId"`
		ContextID string `json:"contextId,omitzero"`
		Role      string `json:"role"`
		Parts     []part `json:"parts"`
	}
	body, err := json.Marshal(struct {
		Message message `json:"message"`
	}{message{messageID, contextID, roleUser, []part{{text, "text/plain"}}}})
	if err != nil {
		return nil, fmt.Errorf("message text: %w", err)
	}
	return body, nil
}

// ReplyKind says which of a Reply's parts is set.
type ReplyKind string

// What an answer to message:send can be.
const (
	ReplyMessage      ReplyKind = "message"       // Message
	ReplyAuthRequired ReplyKind = "auth_required" // StepUp: nothing ran
	ReplyA2AError     ReplyKind = "a2a_error"     // ErrorReason, ErrorText
	ReplyHTTP         ReplyKind = "http"          // Status alone, no A2A body
	ReplyUnreadable   ReplyKind = "unreadable"    // 2xx, and no reply; Problems
)

// The reasons of A2A errors that mean something here (protocol.md, Messages).
const (
	A2AInvalidParams        = "INVALID_PARAMS"
	A2AContentType          = "CONTENT_TYPE_NOT_SUPPORTED"
	A2AUnsupportedOperation = "UNSUPPORTED_OPERATION"
	A2APushNotSupported     = "PUSH_NOTIFICATION_NOT_SUPPORTED"
	A2ATaskNotFound         = "TASK_NOT_FOUND"
	A2AInternal             = "INTERNAL"
)

// Reply is an answer to message:send, read and not yet judged.
type Reply struct {
	Kind   ReplyKind
	Status int // HTTP

	Message ReplyText
	StepUp  StepUp

	ErrorReason string // empty if the envelope names none
	ErrorText   string // redacted; untrusted
	NoReplyYet  bool   // INVALID_PARAMS: the same message is still being worked on (CV-9)

	InvalidToken bool // 401 with error="invalid_token"
	Problems     []Problem
}

// ReplyText is a message of the business. Text is redacted, cut to 20,000
// characters and untrusted (CV-8, RD-4).
type ReplyText struct {
	MessageID       string // redacted; untrusted
	ContextID, Role string
	Text            string
	OtherParts      int            // parts that are not text, left out
	Receipt         jsontext.Value // metadata["pact.receipt"]; nil if there is none
}

// StepUp is a task that waits for consent. Its link is never read (DA-18).
type StepUp struct {
	TaskID, ContextID string
	Text              string   // redacted; untrusted
	MissingScopes     []string // each once, in the task's order
}

// ParseReply reads an answer to message:send. It never fails, and tolerates
// what section 18 lists: either media type, no messageId, an envelope without
// @type or details. 401, 405 and 429 are never A2A errors.
func ParseReply(status int, contentType, wwwAuthenticate string, body []byte) Reply {
	reply := readReply(status, contentType, wwwAuthenticate, body)
	reply.cut()
	return reply
}

// cut cuts what a business says to what is kept of it (CV-8).
func (reply *Reply) cut() {
	m, s := &reply.Message, &reply.StepUp
	m.MessageID, m.Text = truncate(m.MessageID, maxScopeID), truncate(m.Text, maxReply)
	s.Text, reply.ErrorText = truncate(s.Text, maxReply), truncate(reply.ErrorText, maxDescription)
}

// readReply is ParseReply with texts of any length.
func readReply(status int, contentType, wwwAuthenticate string, body []byte) Reply {
	reply := Reply{Kind: ReplyHTTP, Status: status}
	switch {
	case status >= 200 && status < 300:
		return parseSuccess(reply, contentType, body)
	case status == 401:
		reply.InvalidToken = invalidTokenChallenge(wwwAuthenticate)
	case status == 405, status == 429:
	default:
		parseEnvelope(&reply, body)
	}
	return reply
}

var challengeError = regexp.MustCompile(`(?i)(?:^|[\s,])error\s*=\s*(?:"([^"]*)"|([^\s,"]+))`)

func invalidTokenChallenge(header string) bool {
	for _, m := range challengeError.FindAllStringSubmatch(header, -1) {
		if m[1]+m[2] == ReasonInvalidToken {
			return true
		}
	}
	return false
}

const reasonUnreadable = "invalid_reply"

func parseSuccess(reply Reply, contentType string, body []byte) Reply {
	r := &reader{reason: reasonUnreadable, most: maxEntries}
	reply.Kind = ReplyUnreadable
	if media, _, err := mime.ParseMediaType(contentType); contentType != "" && (err != nil || media != TypeJSON && media != TypeA2A) {
		r.add(r.reason, "Content-Type", "must be %s or %s", TypeA2A, TypeJSON)
	}
	o, err := parseObject(body)
	if err != nil {
		r.add(r.reason, "", "%v", err)
	}
	message, isMessage := r.object(o, "", "message", false)
	task, isTask := r.object(o, "", "task", false)
	var kind ReplyKind
	switch {
	case isMessage && isTask:
		r.add(r.reason, "", "has a message and a task")
	case isMessage:
		kind, reply.Message = ReplyMessage, r.replyText(message)
	case isTask:
		kind, reply.StepUp = ReplyAuthRequired, r.stepUp(task)
	case err == nil:
		r.add(r.reason, "", "has no message and no task")
	}
	if len(r.problems) > 0 {
		return Reply{Kind: ReplyUnreadable, Status: reply.Status, Problems: r.problems}
	}
	reply.Kind = kind
	return reply
}

func (r *reader) replyText(m object) ReplyText {
	id := r.text(m, "message.", "messageId", false)
	out := ReplyText{
		MessageID: safe(id, len(id)),
		ContextID: r.text(m, "message.", "contextId", false),
		Role:      r.text(m, "message.", "role", true),
	}
	out.Text, out.OtherParts = r.parts(m, "message.")
	if md, ok := r.object(m, "message.", "metadata", false); ok {
		for _, e := range md {
			if e.name == receiptMember {
				out.Receipt = e.value
			}
		}
	}
	return out
}

// parts joins the text parts.
func (r *reader) parts(m object, path string) (text string, others int) {
	var texts []string
	for i, p := range r.objects(m, path, "parts", true) {
		if v, ok := p.get("text"); ok && v.Kind() == '"' {
			texts = append(texts, unquote(v))
		} else if ok {
			r.add(r.reason, fmt.Sprintf("%sparts[%d].text", path, i), "must be a string")
		} else {
			others++
		}
	}
	return RedactText(strings.Join(texts, "\n")), others
}

func (r *reader) stepUp(t object) StepUp {
	out := StepUp{
		TaskID:    r.text(t, "task.", "id", false),
		ContextID: r.text(t, "task.", "contextId", false),
	}
	status, _ := r.object(t, "task.", "status", true)
	if state := r.text(status, "task.status.", "state", status != nil); status != nil && state != stateAuthNeed {
		r.add(r.reason, "task.status.state", "must be %s: PACT replies are messages", stateAuthNeed)
	}
	// The message is for show only: whatever is wrong with it breaks nothing.
	show := &reader{most: maxEntries}
	if m, ok := show.object(status, "", "message", false); ok {
		out.Text, _ = show.parts(m, "")
	}
	if md, ok := r.object(t, "task.", "metadata", false); ok {
		for _, id := range r.texts(md, "task.metadata.", missingScopesMember, false) {
			if !slices.Contains(out.MissingScopes, id) {
				out.MissingScopes = append(out.MissingScopes, id)
			}
		}
	}
	return out
}

// parseEnvelope reads an A2A error, if the body is one.
func parseEnvelope(reply *Reply, body []byte) {
	r := &reader{most: maxEntries}
	o, err := parseObject(body)
	if err != nil {
		return
	}
	e, ok := r.object(o, "", "error", false)
	if !ok {
		return
	}
	reply.Kind = ReplyA2AError
	text := r.text(e, "", "message", false)
	reply.ErrorText = RedactText(text)
	for _, d := range r.objects(e, "", "details", false) {
		if reason := r.text(d, "", "reason", false); reason != "" {
			reply.ErrorReason = reason
			break
		}
	}
	reply.NoReplyYet = reply.ErrorReason == A2AInvalidParams && strings.Contains(strings.ToLower(text), "no reply yet")
}
