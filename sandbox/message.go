package sandbox

import (
	"context"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// message is what counts of a user's message.
type message struct {
	id, contextID, text string
}

// parseMessage reads the body of message:send. Unknown members are ignored,
// except in a text part.
func parseMessage(body []byte) (message, *a2aError) {
	var in struct {
		Message *struct {
			ID        string           `json:"messageId"`
			ContextID string           `json:"contextId"`
			TaskID    string           `json:"taskId"`
			Role      string           `json:"role"`
			Parts     []jsontext.Value `json:"parts"`
		} `json:"message"`
	}
	if json.Unmarshal(body, &in) != nil || in.Message == nil {
		return message{}, invalidParams("The body must be a JSON object with a message of the A2A schema")
	}
	m := in.Message
	switch {
	case m.ID == "":
		return message{}, invalidParams("messageId must not be empty")
	case m.Role != "ROLE_USER":
		return message{}, invalidParams("Message role must be ROLE_USER")
	case m.TaskID != "":
		return message{}, taskNotFound("Task not found")
	}
	var texts []string
	for _, raw := range m.Parts {
		text, err := parsePart(raw)
		if err != nil {
			return message{}, err
		}
		texts = append(texts, text)
	}
	text := strings.TrimSpace(strings.Join(texts, "\n"))
	if text == "" {
		return message{}, invalidParams("Message text must not be blank")
	}
	return message{m.ID, m.ContextID, text}, nil
}

// otherParts are the members that make a part something else than text.
var otherParts = []string{"data", "raw", "url", "file"}

func parsePart(raw jsontext.Value) (string, *a2aError) {
	var members map[string]jsontext.Value
	if raw.Kind() != '{' || json.Unmarshal(raw, &members) != nil {
		return "", invalidParams("A part must be an object")
	}
	for _, other := range otherParts {
		if _, ok := members[other]; ok {
			return "", errContentType
		}
	}
	var part struct {
		Text      *string                   `json:"text"`
		MediaType *string                   `json:"mediaType"`
		Filename  string                    `json:"filename"`
		Metadata  map[string]jsontext.Value `json:"metadata"`
	}
	if json.Unmarshal(raw, &part, json.RejectUnknownMembers(true)) != nil || part.Text == nil {
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
	MissingScopes []string `json:"pact.missingScopes"`
	Verification  string   `json:"pact.verificationUriComplete,omitempty"`
}

func agentMessage(contextID, text string) outMessage {
	return outMessage{ID: newUUID(), ContextID: contextID, Role: "ROLE_AGENT", Parts: []textPart{{text}}}
}

// send answers message:send for a caller that is authenticated.
func (s *Sandbox) send(w http.ResponseWriter, r *http.Request, b *business, who caller) {
	user, err := s.delegation(r.Header, b, who)
	if err == nil {
		err = s.refuseDelegation(user)
	}
	if err != nil {
		s.log.Info("delegation refused", "brand", b.ID, "issuer", who.issuer, "reason", err)
		w.Header().Set("WWW-Authenticate", `Bearer realm="a2a", error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		invalidParams("The body is too large or was cut off").write(w)
		return
	}
	if s.refuseMessage(w) {
		return
	}
	msg, refusal := parseMessage(body)
	if refusal != nil {
		refusal.write(w)
		return
	}
	// A turn runs to its end also when the caller has gone: they will ask again
	// with the same messageId.
	answer, refusal := s.turn(context.WithoutCancel(r.Context()), b, who, user, msg)
	if refusal != nil {
		refusal.write(w)
		return
	}
	s.deliver(w, r, answer)
}

// turnAnswer is the whole answer to a message.
type turnAnswer struct {
	body []byte
	ran  bool // now; false for a stored reply and a step-up
	asks bool // a step-up
}

// turn runs a message once and returns the answer, or the one it got before.
func (s *Sandbox) turn(ctx context.Context, b *business, who caller, user delegated, msg message) (turnAnswer, *a2aError) {
	conv, stored, refusal := s.store.begin(party{b.ID, who}, msg.contextID, msg.id, user.id, s.now())
	if refusal != nil || stored != nil {
		return turnAnswer{body: stored}, refusal
	}
	conv.turn.Lock()
	defer conv.turn.Unlock()
	if refusal := s.store.mayRun(conv, user.id); refusal != nil {
		s.store.release(conv, msg.id)
		return turnAnswer{}, refusal
	}
	turn := Turn{
		Issuer: who.issuer, Subject: who.subject, ContextID: conv.id, Text: msg.text,
		User: user.id, Scopes: user.scopes, At: s.now(),
	}
	reply, instead := s.answerInstead(b, conv, turn)
	if !instead {
		// If the turn fails, what it did is unknown, and the message stays reserved.
		var err error
		if reply, err = b.Respond(ctx, turn); err == nil {
			err = b.check(turn, reply)
		}
		if err != nil {
			s.log.Error("turn failed", "brand", b.ID, "context", conv.id, "error", err)
			return turnAnswer{}, errInternal
		}
	}
	if len(reply.Missing) > 0 {
		conv.asked = reply.Missing
		s.store.release(conv, msg.id)
		return turnAnswer{body: s.stepUp(b, who, conv.id, reply), asks: true}, nil
	}
	if !instead {
		s.executions.add(b.ID, msg, reply, turn.At)
	}
	out := agentMessage(conv.id, reply.Text)
	if user.id != "" {
		rec, err := s.receipt(b, who, user, reply)
		if err != nil {
			s.log.Error("receipt failed", "brand", b.ID, "context", conv.id, "error", err)
			return turnAnswer{}, errInternal
		}
		if rec != nil {
			out.Metadata = &receiptMetadata{*rec}
		}
	}
	answer, err := encodeReply(out)
	if err != nil {
		s.log.Error("reply does not encode", "brand", b.ID, "context", conv.id, "error", err)
		return turnAnswer{}, errInternal
	}
	s.store.settle(conv, msg.id, storedReply{answer, user.id}, reply.Close)
	if msg.contextID == "" && (s.faults.on("no-reply") || s.faults.on("drop-after")) {
		s.store.unheardOf(conv, msg.id)
	}
	if s.spoilReply(&out) {
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
func (s *Sandbox) stepUp(b *business, who caller, contextID string, reply Reply) []byte {
	link := ""
	if scopes, ok := b.pick(reply.Missing); ok {
		link = s.signInLink(b, s.store.authorize(authorization{party: party{b.ID, who}, scopes: scopes}, s.now()).userCode)
	}
	text := reply.Text
	if text == "" {
		text = "For this we need your permission: " + b.describe(reply.Missing) + "."
	}
	task := authTask{
		ID: "t-" + newUUID(), ContextID: contextID,
		Status:   taskStatus{State: "TASK_STATE_AUTH_REQUIRED", Message: agentMessage(contextID, text)},
		Metadata: taskMetadata{MissingScopes: reply.Missing, Verification: link},
	}
	s.spoilStepUp(&task)
	// Strings only: this encodes.
	answer, _ := json.Marshal(struct {
		Task authTask `json:"task"`
	}{task})
	return answer
}
