package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// message is what counts of a user's message.
type message struct {
	id, contextID, text string
}

// maxMessageID bounds a messageId, in characters: replies are kept under it.
const maxMessageID = 256

// parseMessage reads the body of message:send. Unknown members are ignored,
// except in a text part. broken says which of its rules a fault breaks.
func parseMessage(body []byte, broken func(fault string) bool) (message, *a2aError) {
	var in struct {
		Message *struct {
			ID        string           `json:"messageId"`
			ContextID string           `json:"contextId"`
			TaskID    string           `json:"taskId"`
			Role      string           `json:"role"`
			Parts     []jsontext.Value `json:"parts"`
		} `json:"message"`
	}
	err := json.Unmarshal(body, &in, json.RejectUnknownMembers(true))
	if errors.Is(err, json.ErrUnknownName) && !broken("strict-members") {
		err = json.Unmarshal(body, &in)
	}
	if err != nil || in.Message == nil {
		return message{}, invalidParams("The body must be a JSON object with a message of the A2A schema")
	}
	m := in.Message
	switch {
	case m.ID == "" && !broken("lax-message-id"):
		return message{}, invalidParams("messageId must not be empty")
	case utf8.RuneCountInString(m.ID) > maxMessageID:
		return message{}, invalidParams(fmt.Sprintf("messageId must have at most %d characters", maxMessageID))
	case m.Role != "ROLE_USER" && !broken("lax-role"):
		return message{}, invalidParams("Message role must be ROLE_USER")
	case m.TaskID != "" && !broken("lax-task-id"):
		return message{}, taskNotFound("Task not found")
	}
	var texts []string
	for _, raw := range m.Parts {
		text, err := parsePart(raw, broken)
		if err != nil {
			return message{}, err
		}
		texts = append(texts, text)
	}
	text := strings.TrimSpace(strings.Join(texts, "\n"))
	if text == "" && !broken("lax-blank") {
		return message{}, invalidParams("Message text must not be blank")
	}
	return message{m.ID, m.ContextID, text}, nil
}

// otherParts are the members that make a part something else than text.
var otherParts = []string{"data", "raw", "url", "file"}

func parsePart(raw jsontext.Value, broken func(fault string) bool) (string, *a2aError) {
	var members map[string]jsontext.Value
	if raw.Kind() != '{' || json.Unmarshal(raw, &members) != nil {
		return "", invalidParams("A part must be an object")
	}
	for _, other := range otherParts {
		if _, ok := members[other]; ok {
			if broken("lax-parts") {
				return other, nil
			}
			return "", errContentType
		}
	}
	var part struct {
		Text      *string                   `json:"text"`
		MediaType *string                   `json:"mediaType"`
		Filename  string                    `json:"filename"`
		Metadata  map[string]jsontext.Value `json:"metadata"`
	}
	err := json.Unmarshal(raw, &part, json.RejectUnknownMembers(true))
	if errors.Is(err, json.ErrUnknownName) && broken("lax-part-members") {
		err = json.Unmarshal(raw, &part)
	}
	if err == nil && len(members) > 1 && broken("strict-part") {
		err = json.ErrUnknownName
	}
	if err != nil || part.Text == nil {
		return "", invalidParams("A text part is {text, mediaType?, filename?, metadata?}")
	}
	if part.MediaType != nil && mediaType(*part.MediaType) != "text/plain" {
		return "", errContentType
	}
	return *part.Text, nil
}

// outMessage is a message of the brand's agent.
type outMessage struct {
	ID        string           `json:"messageId,omitempty"`
	ContextID string           `json:"contextId,omitempty"`
	Role      string           `json:"role"`
	Parts     []textPart       `json:"parts"`
	Metadata  *receiptMetadata `json:"metadata,omitempty"`
}

type textPart struct {
	Text string `json:"text"`
}

type receiptMetadata struct {
	Receipt receipt `json:"pact.receipt"`
}

// authTask is the answer to a turn that lacks permission.
type authTask struct {
	ID        string       `json:"id"`
	ContextID string       `json:"contextId,omitempty"`
	Status    taskStatus   `json:"status"`
	Metadata  taskMetadata `json:"metadata"`
}

type taskStatus struct {
	State   string     `json:"state"`
	Message outMessage `json:"message"`
}

type taskMetadata struct {
	MissingScopes any    `json:"pact.missingScopes"` // a []string, but for a fault
	Verification  string `json:"pact.verificationUriComplete,omitempty"`
}

func agentMessage(contextID, text string) outMessage {
	return outMessage{ID: newUUID(), ContextID: contextID, Role: "ROLE_AGENT", Parts: []textPart{{text}}}
}

// send answers message:send for a caller that is authenticated.
func (s *Sandbox) send(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	user, err := s.delegation(r.Context(), r.Header, b, who)
	if err == nil {
		err = s.refuseDelegation(r.Context(), user)
	}
	if errors.Is(err, errStore) {
		s.failA2A(w, err)
		return
	}
	if err != nil {
		s.unauthorizedUser(w, r, b, who, err)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		invalidParams("The body is too large or was cut off").write(w)
		return
	}
	if s.refuseMessage(w, r) {
		return
	}
	msg, refusal := parseMessage(body, s.broken(r.Context()))
	if refusal != nil {
		refusal.write(w)
		return
	}
	// A turn runs to its end also when the caller has gone: they can ask
	// again with the same messageId and contextId.
	answer, err := s.turn(context.WithoutCancel(r.Context()), b, who, user, msg)
	if errors.Is(err, errEnded) && !errors.Is(err, errStore) {
		s.unauthorizedUser(w, r, b, who, err)
		return
	}
	if err != nil {
		s.failA2A(w, err)
		return
	}
	s.deliver(w, r, answer)
}

// unauthorizedUser answers 401 to a delegation token that gives nothing.
func (s *Sandbox) unauthorizedUser(w http.ResponseWriter, r *http.Request, b *business, who caller, reason error) {
	s.log.Info("delegation refused", "brand", b.ID, "issuer", who.issuer, "reason", reason)
	challenge := `Bearer realm="a2a", error="invalid_token"`
	if s.faults.hit(r.Context(), "delegation-challenge") {
		challenge = identityChallenge
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.WriteHeader(http.StatusUnauthorized)
}

// turnAnswer is the whole answer to a message.
type turnAnswer struct {
	body []byte
	ran  bool // now; false for a stored reply and a step-up
	asks bool // a step-up
}

// turn runs a message once and returns the answer, or the one it got before. An error
// that is no a2aError is our failure, but for errEnded.
func (s *Sandbox) turn(ctx context.Context, b *business, who caller, user delegated, msg message) (turnAnswer, error) {
	if stored, err := s.toldElsewhere(ctx, party{b.ID, who}, user, msg); err != nil || stored != nil {
		return turnAnswer{body: stored}, err
	}
	contextID, stored, err := s.store.begin(ctx, party{b.ID, who}, msg.contextID, msg.id, user, s.now())
	if err != nil || stored != nil {
		return turnAnswer{body: stored}, err
	}
	defer s.store.enterTurn(contextID, b.ID, user.id)()
	from, err := s.store.resume(ctx, contextID, user, s.now())
	if err != nil {
		return turnAnswer{}, errors.Join(err, s.store.release(ctx, contextID, msg.id, nil))
	}
	turn := Turn{
		Issuer: who.issuer, Subject: who.subject, ContextID: contextID, Text: msg.text,
		User: user.id, Scopes: user.scopes, Memory: from.memory, At: s.now(),
	}
	reply, instead := s.answerInstead(ctx, b, from.asked, turn)
	if !instead {
		// If the turn fails, what it did is unknown, and the message stays reserved.
		if reply, err = b.Respond(ctx, turn); err == nil {
			err = b.check(turn, reply)
		}
		if err == nil {
			reply, err = s.respondAnyway(ctx, b, &turn, reply)
		}
		if err != nil {
			return turnAnswer{}, fmt.Errorf("brand %s, context %s: %w", b.ID, contextID, err)
		}
	}
	if len(reply.Missing) > 0 {
		if err := s.store.release(ctx, contextID, msg.id, reply.Missing); err != nil {
			return turnAnswer{}, err
		}
		body, err := s.stepUp(ctx, b, who, contextID, reply)
		return turnAnswer{body: body, asks: true}, err
	}
	if !instead {
		s.executions.add(b.ID, msg, reply, turn.At)
	}
	done := outcome{
		brand: b.ID, conversation: contextID, messageID: msg.id, user: user, reply: reply, at: turn.At,
		unheard: msg.contextID == "" && (s.faults.on(ctx, "no-reply") || s.faults.on(ctx, "drop-after")),
	}
	out := agentMessage(contextID, reply.Text)
	if user.id != "" {
		if done.receipt, err = s.receipt(ctx, b, who, user, reply); err != nil {
			return turnAnswer{}, err
		}
		if done.receipt != nil {
			out.Metadata = &receiptMetadata{*done.receipt}
		}
	}
	if done.body, err = encodeReply(out); err != nil {
		return turnAnswer{}, fmt.Errorf("brand %s, context %s: the reply does not encode: %w", b.ID, contextID, err)
	}
	if err := s.store.settle(ctx, done); err != nil {
		return turnAnswer{}, err
	}
	answer := done.body
	if s.spoilReply(ctx, party{b.ID, who}, &out) {
		answer, _ = encodeReply(out) // it did before
	}
	return turnAnswer{body: answer, ran: true}, nil
}

func encodeReply(out outMessage) ([]byte, error) {
	return json.Marshal(struct {
		Message outMessage `json:"message"`
	}{out})
}

// stepUp asks for scopes that the turn lacks, with a fresh link.
func (s *Sandbox) stepUp(ctx context.Context, b *business, who caller, contextID string, reply Reply) ([]byte, error) {
	link := ""
	if scopes, ok := b.pick(reply.Missing); ok {
		asked, err := s.store.authorize(ctx, authorization{party: party{b.ID, who}, scopes: scopes}, s.now())
		if err != nil {
			return nil, err
		}
		link = s.spoilLink(ctx, asked.party, s.signInLink(b, asked.userCode))
	}
	text := reply.Text
	if text == "" {
		text = "For this we need your permission: " + b.describe(reply.Missing) + "."
	}
	task := authTask{
		ID: "t-" + newUUID(), ContextID: contextID,
		Status:   taskStatus{State: "TASK_STATE_AUTH_REQUIRED", Message: agentMessage(contextID, text)},
		Metadata: taskMetadata{Verification: link},
	}
	s.spoilStepUp(ctx, b, &task, reply.Missing)
	return json.Marshal(struct {
		Task authTask `json:"task"`
	}{task})
}
