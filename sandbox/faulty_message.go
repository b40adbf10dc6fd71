package sandbox

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"
)

// refuseDelegation refuses a good delegation token by fault.
func (s *Sandbox) refuseDelegation(ctx context.Context, user delegated) error {
	if user.id == "" {
		return nil
	}
	if _, on := s.faults.take(ctx, "delegation-401"); on {
		return errToldTo
	}
	return nil
}

// refuseMessage answers a message by fault, before anything of it runs.
func (s *Sandbox) refuseMessage(w http.ResponseWriter, r *http.Request) bool {
	ctx := r.Context()
	if _, on := s.faults.take(ctx, "drop-before"); on {
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
		if _, on := s.faults.take(ctx, "step-up-again"); on {
			return Reply{Missing: asked}, true
		}
	}
	if scope, on := s.faults.take(ctx, "step-up-loop"); on && b.delegated() {
		return Reply{Missing: []string{cmp.Or(scope, b.Scopes[0].ID)}}, true
	}
	if s.faults.on(ctx, "step-up-creep") && !containsAll(t.Scopes, b.scopeIDs()) && s.faults.hit(ctx, "step-up-creep") {
		return Reply{Missing: []string{b.another("", t.Scopes)}}, true
	}
	if _, on := s.faults.take(ctx, "still-running"); on {
		return Reply{Text: "We still work on this. Send another message to hear how it ended."}, true
	}
	return Reply{}, false
}

// spoilContext moves an answer to another conversation.
func (s *Sandbox) spoilContext(ctx context.Context, id *string) (changed bool) {
	if _, on := s.faults.take(ctx, "reply-context"); on {
		*id, changed = newUUID(), true
	}
	if _, on := s.faults.take(ctx, "reply-no-context"); on {
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
	if _, on := s.faults.take(ctx, "reply-role-user"); on {
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

func (s *Sandbox) spoilStepUp(ctx context.Context, b *business, task *authTask) {
	if s.spoilContext(ctx, &task.ContextID) {
		task.Status.Message.ContextID = task.ContextID
	}
	if _, on := s.faults.take(ctx, "step-up-no-message-id"); on {
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
	if _, on := s.faults.take(ctx, "step-up-no-link"); on {
		task.Metadata.Verification = ""
	}
	if scope, on := s.faults.take(ctx, "step-up-unknown"); on {
		task.Metadata.MissingScopes = []string{scope}
	}
	if scope, on := s.faults.take(ctx, "step-up-more"); on {
		missing := task.Metadata.MissingScopes
		if scope = b.another(scope, missing); !slices.Contains(missing, scope) {
			task.Metadata.MissingScopes = append(slices.Clone(missing), scope)
		}
	}
}

// deliver sends the answer to a message.
func (s *Sandbox) deliver(w http.ResponseWriter, r *http.Request, a turnAnswer) {
	ctx := r.Context()
	if !a.asks {
		if _, on := s.faults.take(ctx, "no-reply"); on {
			errNoReply.write(w)
			return
		}
	}
	if a.ran {
		if _, on := s.faults.take(ctx, "drop-after"); on {
			panic(http.ErrAbortHandler)
		}
	}
	contentType := typeA2A
	if _, on := s.faults.take(ctx, "reply-json"); on {
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
