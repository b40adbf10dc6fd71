package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// say is a message to send. Its zero values are filled in: a fresh messageId, and the
// run's subject at the first issuer.
type say struct {
	token      string // PA-JWT
	delegation string // delegation token; none if empty
	contextID  string // none if empty
	messageID  string
	text       string
	// members are put into the message, over those above; nil takes one away.
	members map[string]any
}

// send sends a message to a card's brand.
func (r *run) send(ctx context.Context, c *card, s say) (*answer, error) {
	if s.token == "" {
		s.token = r.token(r.issuers[0])
	}
	if s.messageID == "" {
		s.messageID = newUUID()
	}
	message := map[string]any{
		"messageId": s.messageID, "role": "ROLE_USER",
		"parts": []any{map[string]any{"text": s.text}},
	}
	if s.contextID != "" {
		message["contextId"] = s.contextID
	}
	maps.Copy(message, s.members)
	maps.DeleteFunc(message, func(_ string, v any) bool { return v == nil })
	body, err := json.Marshal(map[string]any{"message": message}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	return r.sendBody(ctx, c, s.token, s.delegation, body)
}

// sendBody sends any body as a message.
func (r *run) sendBody(ctx context.Context, c *card, token, delegation string, body []byte) (*answer, error) {
	return r.do(ctx, call{
		method: http.MethodPost, url: c.interfaceURL + "/message:send", token: token, delegation: delegation,
		contentType: "application/json", header: http.Header{"A2a-Version": {"1.0"}}, body: body,
	})
}

// reply is a message of the brand's agent.
type reply struct {
	MessageID string `json:"messageId"`
	ContextID string `json:"contextId"`
	Role      string `json:"role"`
	Parts     []struct {
		Text *string `json:"text"`
	} `json:"parts"`
	Metadata map[string]jsontext.Value `json:"metadata"`
}

// reply is the answer's message. It has what every reply must.
func (a *answer) reply() (reply, error) {
	var body struct {
		Message *reply `json:"message"`
	}
	if a.status != http.StatusOK {
		return reply{}, a.not("200 with a message")
	}
	if err := a.object(&body); err != nil {
		return reply{}, err
	}
	m := body.Message
	if m == nil {
		return reply{}, a.not("200 with a message")
	}
	text := false
	for _, p := range m.Parts {
		text = text || p.Text != nil && strings.TrimSpace(*p.Text) != ""
	}
	switch {
	case m.Role != "ROLE_AGENT":
		return *m, fmt.Errorf("%s: the reply's role is %q: must be ROLE_AGENT", a.asked, clip(m.Role))
	case m.ContextID == "":
		return *m, fmt.Errorf("%s: the reply has no contextId: must be set", a.asked)
	case m.MessageID == "":
		return *m, fmt.Errorf("%s: the reply has no messageId", a.asked)
	case !text:
		return *m, fmt.Errorf("%s: the reply has no text part", a.asked)
	}
	return *m, nil
}

// task is the answer to a turn that needs a permission.
type task struct {
	ID        string `json:"id"`
	ContextID string `json:"contextId"`
	Status    struct {
		State   string `json:"state"`
		Message *reply `json:"message"`
	} `json:"status"`
	Metadata struct {
		Missing []string `json:"pact.missingScopes"`
		Link    *string  `json:"pact.verificationUriComplete"`
	} `json:"metadata"`
}

// task is the answer's task, whatever its state.
func (a *answer) task() (task, error) {
	var body struct {
		Task *task `json:"task"`
	}
	if a.status != http.StatusOK {
		return task{}, a.not("200 with a task")
	}
	if err := a.object(&body); err != nil {
		return task{}, err
	}
	if body.Task == nil {
		return task{}, a.not("200 with a task")
	}
	return *body.Task, nil
}

// isTask tells whether the answer is a task, however it is made.
func (a *answer) isTask() bool {
	var body struct {
		Task jsontext.Value `json:"task"`
	}
	return a.status == http.StatusOK && a.object(&body) == nil && body.Task.Kind() == '{'
}

// greeting needs no permission, and changes nothing.
const greeting = "Hello! What can you do for me?"

// goodMessage is the body of a message that opens a conversation.
func goodMessage() string {
	return fmt.Sprintf(`{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":%q}]}}`, newUUID(), greeting)
}

// answers tells, once, why a brand does not answer a greeting: with a reply, or with a
// step-up, as some do.
func (r *run) answers(ctx context.Context, c *card) error {
	if !c.greeted {
		err := r.greet(ctx, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.greeted, c.mute = true, err
	}
	return c.mute
}

func (r *run) greet(ctx context.Context, c *card) error {
	a, err := r.send(ctx, c, say{text: greeting})
	if err != nil {
		return err
	}
	if t, err := a.task(); err == nil && t.Status.State == stateAuthRequired {
		c.asksFirst = true
		return nil
	}
	_, err = a.reply()
	return err
}

// talks is the card to send messages to, and an issuer whose tokens are taken, once a
// greeting was answered.
func (r *run) talks(ctx context.Context) (*card, *issuer, error) {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c, i, r.heard(ctx, c)
}

// heard is why nothing can be said to a brand.
func (r *run) heard(ctx context.Context, c *card) error {
	if err := r.answers(ctx, c); err != nil && ctx.Err() == nil {
		return notRun("the brand does not answer a greeting: see message-reply")
	}
	return ctx.Err()
}

// converses is the delegation token that a brand's replies need: none, unless it
// answers even a greeting with a step-up.
func (r *run) converses(ctx context.Context, c *card) (delegation string, err error) {
	if err := r.heard(ctx, c); err != nil {
		return "", err
	}
	if !c.asksFirst || !c.delegated {
		return "", nil
	}
	delegation, err = r.grantAll(ctx)
	if err != nil {
		return "", notRun("the brand answers nobody without a grant, and there is none: %v", err)
	}
	return delegation, nil
}

const stateAuthRequired = "TASK_STATE_AUTH_REQUIRED"

// chat sends a message that a brand answers with a reply, under a grant if it answers
// nobody else.
func (r *run) chat(ctx context.Context, c *card, s say) (*answer, error) {
	delegation, err := r.converses(ctx, c)
	if err != nil {
		return nil, err
	}
	s.delegation = delegation
	if s.text == "" {
		s.text = greeting
	}
	return r.send(ctx, c, s)
}

// draw says something that draws a step-up.
func (r *run) draw(ctx context.Context, s *stepUp) (task, error) {
	a, err := r.send(ctx, s.card, say{text: s.ask.Text})
	if err != nil {
		return task{}, err
	}
	return a.task()
}

// open opens a conversation with a greeting and returns its contextId.
func (r *run) open(ctx context.Context, c *card) (contextID string, err error) {
	a, err := r.chat(ctx, c, say{})
	if err != nil {
		return "", err
	}
	m, err := a.reply()
	return m.ContextID, err
}
