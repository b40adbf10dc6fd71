package sandbox

import (
	"net/http"
	"slices"
	"time"
)

// refuseDelegation refuses a good delegation token by switch.
func (s *Sandbox) refuseDelegation(user delegated) error {
	if user.id == "" {
		return nil
	}
	if _, on := s.faults.take("delegation-401"); on {
		return errToldTo
	}
	return nil
}

// refuseMessage answers a message by switch, before anything of it runs.
func (s *Sandbox) refuseMessage(w http.ResponseWriter) bool {
	if _, on := s.faults.take("drop-before"); on {
		panic(http.ErrAbortHandler)
	}
	if n, on := s.faults.number("status"); on {
		w.WriteHeader(n)
		return true
	}
	if n, on := s.faults.number("too-many"); on {
		tooMany(w, time.Duration(n)*time.Second)
		return true
	}
	return false
}

// answerInstead is what is answered by switch in place of the brand.
func (s *Sandbox) answerInstead(b *business, conv *conversation, t Turn) (Reply, bool) {
	if t.User == "" && b.delegated() {
		if scope, on := s.faults.take("step-up-first"); on {
			if scope == "" {
				scope = b.Scopes[0].ID
			}
			return Reply{Missing: []string{scope}}, true
		}
	}
	if len(conv.asked) > 0 && containsAll(t.Scopes, conv.asked) {
		if _, on := s.faults.take("step-up-again"); on {
			return Reply{Missing: conv.asked}, true
		}
	}
	if _, on := s.faults.take("still-running"); on {
		return Reply{Text: "We still work on this. Send another message to hear how it ended."}, true
	}
	return Reply{}, false
}

// spoilContext moves an answer to another conversation.
func (s *Sandbox) spoilContext(id *string) (changed bool) {
	if _, on := s.faults.take("reply-context"); on {
		*id, changed = newUUID(), true
	}
	if _, on := s.faults.take("reply-no-context"); on {
		*id, changed = "", true
	}
	return changed
}

// spoilReply changes a reply, but not the stored one.
func (s *Sandbox) spoilReply(out *outMessage) (changed bool) {
	changed = s.spoilContext(&out.ContextID)
	if _, on := s.faults.take("reply-role-user"); on {
		out.Role, changed = "ROLE_USER", true
	}
	return changed
}

func (s *Sandbox) spoilStepUp(task *authTask) {
	if s.spoilContext(&task.ContextID) {
		task.Status.Message.ContextID = task.ContextID
	}
	if _, on := s.faults.take("step-up-no-message-id"); on {
		task.Status.Message.ID = ""
	}
	if link, on := s.faults.take("step-up-link"); on {
		task.Metadata.Verification = link
	}
	if _, on := s.faults.take("step-up-no-link"); on {
		task.Metadata.Verification = ""
	}
	if scope, on := s.faults.take("step-up-more"); on && !slices.Contains(task.Metadata.MissingScopes, scope) {
		task.Metadata.MissingScopes = append(slices.Clone(task.Metadata.MissingScopes), scope)
	}
}

// deliver sends the answer to a message.
func (s *Sandbox) deliver(w http.ResponseWriter, r *http.Request, a turnAnswer) {
	if n, on := s.faults.number("slow"); on {
		// The time to read a request is over then, which would end r.Context().
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		wait := time.NewTimer(time.Duration(n) * time.Second)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-r.Context().Done():
		}
	}
	if !a.asks {
		if _, on := s.faults.take("no-reply"); on {
			errNoReply.write(w)
			return
		}
	}
	if a.ran {
		if _, on := s.faults.take("drop-after"); on {
			panic(http.ErrAbortHandler)
		}
	}
	contentType := typeA2A
	if _, on := s.faults.take("reply-json"); on {
		contentType = typeJSON
	}
	if _, on := s.faults.take("reply-garbage"); on {
		a.body = []byte("<html>It works!</html>")
	}
	writeBody(w, http.StatusOK, contentType, a.body)
}

// bareErrors is an answer whose A2A errors may be without details.
type bareErrors struct {
	http.ResponseWriter
	faults *faults
}

// Unwrap is for http.ResponseController.
func (b *bareErrors) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *bareErrors) take() bool {
	_, on := b.faults.take("envelope-bare")
	return on
}

// spoilErrors has the A2A errors written to w ask the switch.
func (s *Sandbox) spoilErrors(w http.ResponseWriter) http.ResponseWriter {
	if s.faults.on("envelope-bare") {
		return &bareErrors{w, &s.faults}
	}
	return w
}
