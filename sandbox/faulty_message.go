package sandbox

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
)

// refuseDelegation refuses a good delegation token by fault.
func (s *Sandbox) refuseDelegation(ctx context.Context, user delegated) error {
	if user.id == "" {
		return nil
	}
	if s.faults.hit(ctx, "delegation-401") {
		return errToldTo
	}
	return nil
}

// refuseMessage answers a message by fault, before anything of it runs.
func (s *Sandbox) refuseMessage(w http.ResponseWriter, r *http.Request) bool {
	ctx := r.Context()
	if s.faults.hit(ctx, "drop-before") {
		panic(http.ErrAbortHandler)
	}
	if s.faults.hit(ctx, "hang-before") {
		s.pause(w, r, forever)
	}
	if s.faults.hit(ctx, "no-retry-after") {
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	if n, on := s.faults.number(ctx, "too-many"); on {
		tooMany(w, time.Duration(n)*time.Second)
		return true
	}
	return false
}

// answerInstead is what is answered by fault in place of the brand; asked is what the
// conversation's last step-up missed.
func (s *Sandbox) answerInstead(ctx context.Context, b *business, asked []string, t Turn) (Reply, bool) {
	if t.User == "" && b.delegated() {
		if scope, on := s.faults.take(ctx, "step-up-first"); on {
			scope = cmp.Or(scope, b.Scopes[0].ID)
			return Reply{Missing: []string{scope}}, true
		}
	}
	if len(asked) > 0 && containsAll(t.Scopes, asked) {
		if s.faults.hit(ctx, "step-up-again") {
			return Reply{Missing: asked}, true
		}
	}
	if scope, on := s.faults.take(ctx, "step-up-loop"); on && b.delegated() {
		return Reply{Missing: []string{cmp.Or(scope, b.Scopes[0].ID)}}, true
	}
	if s.faults.on(ctx, "step-up-creep") && !containsAll(t.Scopes, b.scopeIDs()) && s.faults.hit(ctx, "step-up-creep") {
		return Reply{Missing: []string{b.another("", t.Scopes)}}, true
	}
	if s.faults.hit(ctx, "still-running") {
		return Reply{Text: "We still work on this. Send another message to hear how it ended."}, true
	}
	return Reply{}, false
}

// respondAnyway has the brand answer, as if everything were allowed, a turn for which
// it missed scopes.
func (s *Sandbox) respondAnyway(ctx context.Context, b *business, t *Turn, missed Reply) (Reply, error) {
	if len(missed.Missing) == 0 || !s.faults.hit(ctx, "scopes-unenforced") {
		return missed, nil
	}
	t.User, t.Scopes = cmp.Or(t.User, s.accounts[0].id), b.scopeIDs()
	reply, err := b.Respond(ctx, *t)
	if err == nil {
		err = b.check(*t, reply)
	}
	return reply, err
}

// toldElsewhere is the stored reply to a messageId that the party may not have as this
// user: in another of its contexts, or another's. It is nil if no fault gives it.
func (s *Sandbox) toldElsewhere(ctx context.Context, p party, user delegated, msg message) ([]byte, error) {
	if !s.faults.on(ctx, "repeat-") && !s.faults.on(ctx, "reply-to-anyone") {
		return nil, nil
	}
	told, err := s.store.told(ctx, p, msg)
	fault := "repeat-foreign"
	switch {
	case err != nil, told.reply == nil, told.here && told.user == user.id:
		return nil, err
	case told.here:
		fault = "reply-to-anyone"
	case told.party == p:
		fault = "repeat-anywhere"
	}
	if !s.faults.hit(ctx, fault) {
		return nil, nil
	}
	return told.reply, nil
}

// told is a stored reply, and whom it was told.
type told struct {
	party
	here  bool // in the context that the message names, or begins
	user  string
	reply []byte
}

// told finds the stored reply to a message: where it belongs, else anywhere at the
// brand.
func (s *store) told(ctx context.Context, p party, msg message) (found told, err error) {
	err = s.view(ctx, func(t *tx) error {
		_, err := t.get(`SELECT c.brand, c.issuer, c.subject,
				c.issuer = ? AND c.subject = ? AND (c.id = ? OR ? = '' AND c.opened IS m.id) AS here, m.user, m.reply
			FROM messages m JOIN conversations c ON c.id = m.conversation
			WHERE c.brand = ? AND m.id = ? AND m.reply IS NOT NULL ORDER BY here DESC, c.issuer = ? AND c.subject = ? DESC LIMIT 1`,
			[]any{p.issuer, p.subject, msg.contextID, msg.contextID, p.brand, msg.id, p.issuer, p.subject},
			&found.brand, &found.issuer, &found.subject, &found.here, &found.user, &found.reply)
		return err
	})
	return found, err
}

// spoilContext moves an answer to another conversation.
func (s *Sandbox) spoilContext(ctx context.Context, id *string) (changed bool) {
	if s.faults.hit(ctx, "reply-context") {
		*id, changed = newUUID(), true
	}
	if s.faults.hit(ctx, "reply-no-context") {
		*id, changed = "", true
	}
	return changed
}

// spoilReply changes a reply, but not the stored one.
func (s *Sandbox) spoilReply(ctx context.Context, p party, out *outMessage) (changed bool) {
	if before, ok := s.faults.replyBefore(p, *out); ok {
		if before.ContextID != out.ContextID && s.faults.hit(ctx, "reply-crossed") {
			out.ContextID, changed = before.ContextID, true
		}
		if s.faults.hit(ctx, "reply-previous") {
			*out, changed = before, true
		}
	}
	changed = s.spoilContext(ctx, &out.ContextID) || changed
	if s.faults.hit(ctx, "reply-role-user") {
		out.Role, changed = "ROLE_USER", true
	}
	return changed
}

// spoilLink replaces the link of a step-up.
func (s *Sandbox) spoilLink(ctx context.Context, p party, link string) string {
	if s.faults.on(ctx, "step-up-stale") {
		if first, again := s.faults.firstLink(p, link); again && s.faults.hit(ctx, "step-up-stale") {
			return first
		}
	}
	return link
}

func (s *Sandbox) spoilStepUp(ctx context.Context, b *business, task *authTask, missing []string) {
	if s.spoilContext(ctx, &task.ContextID) {
		task.Status.Message.ContextID = task.ContextID
	}
	if s.faults.hit(ctx, "step-up-no-message-id") {
		task.Status.Message.ID = ""
	}
	if link, on := s.faults.take(ctx, "step-up-link"); on {
		task.Metadata.Verification = link
	}
	if s.faults.hit(ctx, "step-up-foreign") {
		task.Metadata.Verification = elsewhereOrigin + "/login"
	}
	if s.faults.hit(ctx, "step-up-state") {
		task.Status.State = "TASK_STATE_INPUT_REQUIRED"
	}
	if s.faults.hit(ctx, "step-up-no-link") {
		task.Metadata.Verification = ""
	}
	if scope, on := s.faults.take(ctx, "step-up-unknown"); on {
		missing = []string{scope}
	}
	if scope, on := s.faults.take(ctx, "step-up-more"); on {
		if scope = b.another(scope, missing); !slices.Contains(missing, scope) {
			missing = append(slices.Clone(missing), scope)
		}
	}
	task.Metadata.MissingScopes = missing
	if s.faults.hit(ctx, "step-up-scopes-text") {
		task.Metadata.MissingScopes = strings.Join(missing, " ")
	}
}

// deliver sends the answer to a message.
func (s *Sandbox) deliver(w http.ResponseWriter, r *http.Request, a turnAnswer) {
	ctx := r.Context()
	if !a.asks {
		if s.faults.hit(ctx, "no-reply") {
			errNoReply.write(w)
			return
		}
	}
	if a.ran {
		if s.faults.hit(ctx, "drop-after") {
			panic(http.ErrAbortHandler)
		}
	}
	contentType := typeA2A
	if s.faults.hit(ctx, "reply-json") {
		contentType = typeJSON
	}
	writeBody(w, http.StatusOK, contentType, a.body)
}

// spoiledErrors is an answer whose errors are not as they must be.
type spoiledErrors struct {
	http.ResponseWriter
	ctx    context.Context
	faults *faults
}

// spoilErrors has the errors written to w ask for faults.
func (s *Sandbox) spoilErrors(ctx context.Context, w http.ResponseWriter) http.ResponseWriter {
	if s.faults.on(ctx, "envelope-") || s.faults.on(ctx, "oauth-") {
		return &spoiledErrors{w, ctx, &s.faults}
	}
	return w
}

// Unwrap is for http.ResponseController.
func (e *spoiledErrors) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *spoiledErrors) hit(name string) bool { return e.faults.hit(e.ctx, name) }

// envelope changes an A2A error and returns its content type.
func (e *spoiledErrors) envelope(status *errorStatus) (contentType string) {
	if e.hit("envelope-code") {
		status.Code = http.StatusInternalServerError
	}
	if e.hit("envelope-domain") {
		status.Details[0].Domain = "errors.example"
	}
	if e.hit("envelope-bare") {
		status.Details = nil
	}
	if e.hit("envelope-json") {
		return typeJSON
	}
	return typeA2A
}

// oauthStatus is the status of an OAuth error.
func (e *spoiledErrors) oauthStatus(status int) int {
	if n, on := e.faults.number(e.ctx, "oauth-error-status"); on {
		return n
	}
	return status
}
