package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

const fromMessages = "Messages"

var messageChecks = []check{
	{Check{ID: "message-reply", Requirement: "a reply has ROLE_AGENT, a contextId and a text", Source: fromMessages}, insist(checkMessageReply)},
	{Check{ID: "message-contexts", Requirement: "a context is minted, or kept when it is named", Source: fromMessages}, checkMessageContexts},
	{Check{ID: "message-repeat", Requirement: "the same messageId again brings the stored reply", Source: fromMessages}, checkMessageRepeat},
	{Check{ID: "message-concurrent", Requirement: "a message that comes twice at once runs once", Source: fromMessages}, checkMessageConcurrent},
	{Check{ID: "message-unknown-context", Requirement: "a foreign context is refused like an unknown one", Source: fromMessages}, checkMessageUnknownContext},
	{Check{ID: "message-schema", Requirement: "what is no message of the schema: INVALID_PARAMS", Source: fromMessages}, checkMessageSchema},
	{Check{ID: "message-parts", Requirement: "other parts: CONTENT_TYPE_NOT_SUPPORTED", Source: fromMessages}, checkMessageParts},
	{Check{ID: "message-part-members", Requirement: "a text part has the four members and no other", Source: fromMessages}, checkMessagePartMembers},
	{Check{ID: "message-members", Requirement: "unknown members of a message are ignored", Source: fromMessages}, checkMessageMembers},
	{Check{ID: "message-task-id", Requirement: "a taskId: TASK_NOT_FOUND", Source: fromMessages}, checkMessageTaskID},
	{Check{ID: "message-errors", Requirement: "errors have code, status, message, ErrorInfo", Source: fromMessages}, checkMessageErrors},
	{Check{ID: "message-closed", Requirement: "a closed context: UNSUPPORTED_OPERATION", Source: fromMessages}, checkMessageClosed},
	{Check{ID: "message-retry-after", Requirement: "a 429 says with Retry-After when to come back", Source: fromMessages}, checkMessageRetryAfter},
}

// accepting is the card to send messages to, once a greeting was answered.
func (r *run) accepting(ctx context.Context) (*card, error) {
	c, _, err := r.talks(ctx)
	return c, err
}

func checkMessageReply(ctx context.Context, r *run) error {
	c, _, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	if err := r.answers(ctx, c); err != nil {
		return err
	}
	a, err := r.chat(ctx, c, say{})
	if err != nil {
		return err
	}
	_, err = a.reply()
	return err
}

func checkMessageContexts(ctx context.Context, r *run) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	first, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	second, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	if first == second {
		return errors.New("two messages without a contextId were answered in the same context: each must open a new one")
	}
	a, err := r.chat(ctx, c, say{contextID: first})
	if err != nil {
		return err
	}
	m, err := a.reply()
	if err != nil {
		return fmt.Errorf("a message with the contextId of a reply: %w", err)
	}
	if m.ContextID != first {
		return errors.New("a message with a contextId was answered in another context")
	}
	return nil
}

func checkMessageRepeat(ctx context.Context, r *run) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	// In a context that is there: sent again without one, what opened a context is the
	// same message too.
	contextID, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	message := say{messageID: newUUID(), contextID: contextID}
	a, err := r.chat(ctx, c, message)
	if err != nil {
		return err
	}
	if _, err := a.reply(); err != nil {
		return err
	}
	again, err := r.chat(ctx, c, message)
	if err != nil {
		return err
	}
	if _, err := again.reply(); err != nil {
		return fmt.Errorf("the same messageId again in its context: %w", err)
	}
	if !sameMessage(a, again) {
		return errors.New("the same messageId again in its context brought another reply: must be the stored one")
	}
	return r.repeatElsewhere(ctx, c, message, a)
}

// repeatElsewhere uses a messageId again outside of its context, where it is another
// message, and as others, to whom the reply says nothing.
func (r *run) repeatElsewhere(ctx context.Context, c *card, said say, stored *answer) error {
	own := said.contextID
	another, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	type elsewhere struct {
		what           string
		contextID, not string // it may be answered in, and must not be
		token          string
	}
	stranger := r.token(r.issuers[0], claim("sub", r.stranger))
	cases := []elsewhere{
		{"in another context of the user", another, own, ""},
		{"without a context", "", own, ""},
		{"by another user, without a context", "", own, stranger},
		{"by another user, in its context", own, own, stranger},
	}
	if second, err := r.second(ctx); err == nil {
		cases = append(cases,
			elsewhere{"by another issuer's user, without a context", "", own, r.token(second)},
			elsewhere{"by another issuer's user, in its context", own, own, r.token(second)})
	} else if ctx.Err() != nil {
		return err
	}
	var f findings
	for _, t := range cases {
		again := say{messageID: said.messageID, contextID: t.contextID, token: t.token, text: greeting}
		send := r.chat
		if t.token != "" { // nobody granted them anything
			send = r.send
		}
		a, err := send(ctx, c, again)
		if err == nil && a.status == http.StatusOK {
			m, rerr := a.reply()
			if sameMessage(stored, a) || rerr == nil && m.ContextID == t.not {
				err = fmt.Errorf("%s: 200 with the reply of its context: that is for the user there alone", a.asked)
			}
		}
		f.add("the same messageId "+t.what, err)
	}
	return f.err()
}

// sameMessage tells whether two answers bring the same message, member by member.
func sameMessage(a, b *answer) bool {
	var first, second struct {
		Message jsontext.Value `json:"message"`
	}
	if a.object(&first) != nil || b.object(&second) != nil {
		return false
	}
	return first.Message.Canonicalize() == nil && second.Message.Canonicalize() == nil &&
		string(first.Message) == string(second.Message)
}

// atOnce is how many times a message is sent at the same time.
const atOnce = 2

func checkMessageConcurrent(ctx context.Context, r *run) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	contextID, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	delegation, err := r.converses(ctx, c)
	if err != nil {
		return err
	}
	message := say{contextID: contextID, messageID: newUUID(), text: greeting, delegation: delegation}
	answers, errs := make([]*answer, atOnce), make([]error, atOnce)
	var sent sync.WaitGroup
	for n := range atOnce {
		sent.Go(func() { answers[n], errs[n] = r.send(ctx, c, message) })
	}
	sent.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var replied *answer
	for _, a := range answers {
		if e, err := a.a2a(); err == nil && e.reason() == invalidParams && strings.Contains(e.Message, noReplyYet) {
			continue
		}
		if _, err := a.reply(); err != nil {
			return fmt.Errorf("%w, or 400 INVALID_PARAMS that says %q", err, noReplyYet)
		}
		if replied != nil && !sameMessage(replied, a) {
			return errors.New("a message that came several times at once got different replies: it must run once")
		}
		replied = a
	}
	if replied == nil {
		return fmt.Errorf("of %d times the same message at once none got the reply", atOnce)
	}
	return nil
}

// noReplyYet is in the message of the error for a messageId without a stored reply.
const noReplyYet = "no reply yet"

func checkMessageUnknownContext(ctx context.Context, r *run) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	own, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	type foreign struct {
		what string
		say  say
	}
	cases := []foreign{
		{"a contextId that there never was", say{contextID: newUUID()}},
		{"a context of another user", say{contextID: own, token: r.token(r.issuers[0], claim("sub", r.stranger))}},
	}
	if second, err := r.second(ctx); err == nil {
		cases = append(cases, foreign{"a context of another issuer's user of that name", say{contextID: own, token: r.token(second)}})
	} else if ctx.Err() != nil {
		return err
	} else {
		r.remark("another issuer's user was not tried: %v", err)
	}
	if there, err := r.elsewhere(ctx, c); err != nil {
		return err
	} else if there != "" {
		cases = append(cases, foreign{"a context of another brand", say{contextID: there}})
	}
	var f findings
	var texts []string
	for _, t := range cases {
		t.say.text = greeting
		a, err := r.send(ctx, c, t.say)
		if err == nil {
			err = a.refuses(invalidParams)
		}
		f.add(t.what, err)
		if err != nil {
			continue
		}
		if e, err := a.a2a(); err == nil {
			texts = append(texts, strings.ReplaceAll(e.Message, t.say.contextID, "…"))
		}
	}
	if slices.Sort(texts); len(slices.Compact(texts)) > 1 {
		f.add("", errors.New("unknown and foreign contexts are refused in different words, which tells them apart"))
	}
	return f.err()
}

// elsewhere is a context of the run's user at another brand than c's; empty if there
// is no other.
func (r *run) elsewhere(ctx context.Context, c *card) (string, error) {
	for _, other := range r.cards {
		if !r.usable(other) || other.interfaceURL == c.interfaceURL {
			continue
		}
		a, err := r.send(ctx, other, say{text: greeting})
		if err != nil {
			return "", err
		}
		if m, err := a.reply(); err == nil {
			return m.ContextID, nil
		}
		if t, err := a.task(); err == nil {
			return t.ContextID, nil
		}
	}
	return "", nil
}

// refusedMessages sends messages that must be refused for that reason.
func (r *run) refusedMessages(ctx context.Context, reason string, cases []messageCase) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, t := range cases {
		a, err := r.send(ctx, c, say{text: greeting, members: t.members})
		if err == nil {
			err = a.refuses(reason)
		}
		f.add(t.what, err)
	}
	return f.err()
}

// messageCase is a message of which some members differ; nil ones are left out.
type messageCase struct {
	what    string
	members map[string]any
}

// parts is a message's member of that name.
func parts(parts ...any) map[string]any { return map[string]any{"parts": parts} }

// member is one member of a message or part.
func member(name string, value any) map[string]any { return map[string]any{name: value} }

func checkMessageSchema(ctx context.Context, r *run) error {
	c, i, err := r.talks(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, t := range []struct{ what, body string }{
		{"bad JSON", "{"},
		{"an array", "[]"},
		{"no message", "{}"},
		{"a message that is a string", `{"message":"Hello"}`},
	} {
		a, err := r.sendBody(ctx, c, r.token(i), "", []byte(t.body))
		if err == nil {
			err = a.refuses(invalidParams)
		}
		f.add(t.what, err)
	}
	f.add("", r.refusedMessages(ctx, invalidParams, []messageCase{
		{"no messageId", member("messageId", nil)},
		{"an empty messageId", member("messageId", "")},
		{"no role", member("role", nil)},
		{"ROLE_AGENT", member("role", "ROLE_AGENT")},
		{"blank text", parts(member("text", " \n\t"))},
		{"no parts", member("parts", nil)},
		{"empty parts", parts()},
		{"a part that is a string", parts("Hello")},
	}))
	return f.err()
}

func checkMessageParts(ctx context.Context, r *run) error {
	text := member("text", greeting)
	data := member("data", map[string]any{"a": 1})
	raw := map[string]any{"raw": "SGVsbG8=", "mediaType": "application/octet-stream"}
	link := map[string]any{"url": "https://agent.invalid/file", "mediaType": "application/pdf"}
	return r.refusedMessages(ctx, contentType, []messageCase{
		{"a data part", parts(data)},
		{"a raw part", parts(raw)},
		{"a url part", parts(link)},
		{"a data part beside text", parts(text, data)},
		{"a url part before text", parts(link, text)},
	})
}

// taken sends messages that must be answered with a reply.
func (r *run) taken(ctx context.Context, cases []messageCase) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, t := range cases {
		a, err := r.chat(ctx, c, say{members: t.members})
		if err == nil {
			_, err = a.reply()
		}
		f.add(t.what, err)
	}
	return f.err()
}

func checkMessagePartMembers(ctx context.Context, r *run) error {
	var f findings
	f.add("", r.refusedMessages(ctx, invalidParams, []messageCase{
		{"another member in a text part", parts(map[string]any{"text": greeting, "language": "en"})},
	}))
	f.add("", r.taken(ctx, []messageCase{
		{"a text part with mediaType, filename and metadata", parts(map[string]any{
			"text": greeting, "mediaType": "text/plain", "filename": "hello.txt", "metadata": map[string]any{"a": 1},
		})},
		{"two text parts", parts(member("text", "Hello!"), member("text", "What can you do for me?"))},
	}))
	return f.err()
}

func checkMessageMembers(ctx context.Context, r *run) error {
	return r.taken(ctx, []messageCase{{"unknown members", map[string]any{
		"mood": "good", "nothing": map[string]any{"at": []any{"all"}},
	}}})
}

func checkMessageTaskID(ctx context.Context, r *run) error {
	return r.refusedMessages(ctx, taskNotFound, []messageCase{{"a taskId", member("taskId", noTask)}})
}

func checkMessageErrors(ctx context.Context, r *run) error {
	c, i, err := r.talks(ctx)
	if err != nil {
		return err
	}
	var f findings
	whole := func(reason string, a *answer, err error) {
		if err == nil {
			err = a.whole(reason)
		}
		f.add("", err)
	}
	a, err := r.send(ctx, c, say{text: " "})
	whole(invalidParams, a, err)
	a, err = r.send(ctx, c, say{members: parts(member("data", map[string]any{}))})
	whole(contentType, a, err)
	a, err = r.send(ctx, c, say{text: greeting, members: member("taskId", noTask)})
	whole(taskNotFound, a, err)
	for _, t := range []struct {
		to     route
		reason string
	}{{routesNever[1], unsupported}, {routesPush[0], noPush}, {routesTask[0], taskNotFound}} {
		a, err = r.ask(ctx, c.interfaceURL, t.to, r.token(i), goodMessage())
		whole(t.reason, a, err)
	}
	return f.err()
}

// whole is nil if an A2A error is all that the protocol says of it.
func (a *answer) whole(reason string) error {
	e, err := a.a2a()
	if err != nil {
		return err
	}
	if len(e.Details) == 0 {
		return fmt.Errorf("%s: %d with an error that has no details: must have an ErrorInfo first", a.asked, a.status)
	}
	expected, detail := reasons[reason], e.Details[0]
	for _, m := range []struct {
		name      string
		got, want any
	}{
		{"the HTTP status", a.status, expected.http},
		{"code", e.Code, expected.http},
		{"status", e.Status, expected.status},
		{"details[0].@type", detail.Type, "type.googleapis.com/google.rpc.ErrorInfo"},
		{"details[0].reason", detail.Reason, reason},
		{"details[0].domain", detail.Domain, "a2a-protocol.org"},
	} {
		if m.got != m.want {
			return fmt.Errorf("%s: %s of the error is %q: must be %q", a.asked, m.name, clip(fmt.Sprint(m.got)), fmt.Sprint(m.want))
		}
	}
	if strings.TrimSpace(e.Message) == "" {
		return fmt.Errorf("%s: the error has no message", a.asked)
	}
	return nil
}

func checkMessageClosed(ctx context.Context, r *run) error {
	c, err := r.accepting(ctx)
	if err != nil {
		return err
	}
	closes := cmp.Or(r.cfg.Closes, r.brand(c).Closes)
	if closes == "" {
		return notRun("it needs a message that ends a conversation")
	}
	contextID, err := r.open(ctx, c)
	if err != nil {
		return err
	}
	a, err := r.chat(ctx, c, say{contextID: contextID, text: closes})
	if err != nil {
		return err
	}
	if _, err := a.reply(); err != nil {
		return err
	}
	if a, err = r.chat(ctx, c, say{contextID: contextID}); err != nil {
		return err
	}
	if err := a.refuses(unsupported); err != nil {
		return fmt.Errorf("after the message that ends a conversation: %w", err)
	}
	if _, err = r.open(ctx, c); err != nil {
		return fmt.Errorf("a new context after that: %w", err)
	}
	return nil
}

func checkMessageRetryAfter(ctx context.Context, r *run) error {
	c, _, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	_, err = r.chat(ctx, c, say{})
	switch {
	case r.unsaid != nil:
		return r.unsaid
	case err != nil:
		return lacking("nothing could be said", err)
	case r.tooMany == 0:
		r.remark("there was no 429 so far")
	}
	return nil
}
