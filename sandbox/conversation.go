package sandbox

import (
	"sync"
	"time"
)

// maxConversations bounds the memory; beyond it the one that was idle longest is
// forgotten.
const maxConversations = 10000

// conversation is a context: its party, what was said under which messageId, and
// the brand's user once a turn ran as one.
type conversation struct {
	id    string
	party party
	turn  sync.Mutex // held while a turn runs: one at a time
	asked []string   // what the last step-up missed; guarded by turn

	// Guarded by store.mu.
	user    string
	closed  bool
	used    time.Time
	replies map[string]*storedReply // nil while the turn runs
	opened  string                  // messageId that leads here without the contextId; "" if none
}

// storedReply is the whole answer to a message, and the brand's user that it was
// given for ("" undelegated).
type storedReply struct {
	body []byte
	user string
}

// begin opens or continues a conversation with a message. It returns the stored
// reply if there is one; else the message is reserved until settle or release.
// Errors are the a2aErrors to answer.
func (s *store) begin(p party, contextID, messageID, user string, now time.Time) (*conversation, []byte, *a2aError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if contextID == "" {
		contextID = s.unheard[opening{p, messageID}]
	}
	if contextID == "" {
		c := &conversation{id: newUUID(), party: p, used: now, replies: map[string]*storedReply{messageID: nil}}
		s.makeRoom()
		s.conversations[c.id] = c
		return c, nil, nil
	}
	c, ok := s.conversations[contextID]
	if !ok || c.party != p {
		return nil, nil, invalidParams("Unknown contextId")
	}
	if c.user != "" && user != "" && c.user != user {
		return nil, nil, errOtherUser
	}
	if r, ok := c.replies[messageID]; ok {
		switch {
		case r == nil:
			return nil, nil, errNoReply
		case r.user != user:
			// What a user allowed to be told is told under their delegation only.
			return nil, nil, errOtherUser
		}
		return c, r.body, nil
	}
	if c.closed || now.Sub(c.used) >= s.params.ContextIdle {
		return nil, nil, unsupported("Context is closed")
	}
	c.used = now
	c.replies[messageID] = nil
	return c, nil, nil
}

func (s *store) makeRoom() {
	if len(s.conversations) < maxConversations {
		return
	}
	var oldest *conversation
	for _, c := range s.conversations {
		if oldest == nil || c.used.Before(oldest.used) {
			oldest = c
		}
	}
	delete(s.conversations, oldest.id)
	delete(s.unheard, opening{oldest.party, oldest.opened})
}

// opening is a message without a contextId.
type opening struct {
	party     party
	messageID string
}

// unheardOf has the message that opened a conversation lead back to it, since the
// answer that names the conversation is held back.
func (s *store) unheardOf(c *conversation, messageID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.opened = messageID
	s.unheard[opening{c.party, messageID}] = c.id
}

// mayRun tells, with the conversation's turn held, whether a turn as user may run.
func (s *store) mayRun(c *conversation, user string) *a2aError {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.closed:
		return unsupported("Context is closed")
	case c.user != "" && user != "" && c.user != user:
		return errOtherUser
	}
	return nil
}

// settle stores the reply to a message for good.
func (s *store) settle(c *conversation, messageID string, r storedReply, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.replies[messageID] = &r
	c.closed = c.closed || closed
	if c.user == "" {
		c.user = r.user
	}
}

// release gives the messageId free again: nothing ran under it.
func (s *store) release(c *conversation, messageID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(c.replies, messageID)
}
