package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxConversations bounds the state; beyond it the one that was idle longest is
// forgotten.
const maxConversations = 10000

var (
	errUnknownContext = invalidParams("Unknown contextId")
	errClosed         = unsupported("Context is closed")
)

// begin opens or continues a conversation with a message. It returns the stored
// reply if there is one; else the message is reserved until settle or release.
func (s *store) begin(ctx context.Context, p party, contextID, messageID, user string, now time.Time) (id string, stored []byte, err error) {
	err = s.update(ctx, func(t *tx) error {
		if id = contextID; id == "" {
			if _, err := t.get("SELECT id FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? AND opened = ? ORDER BY rowid DESC LIMIT 1",
				p.columns(messageID), &id); err != nil {
				return err
			}
		}
		if id == "" && t.lax(ctx, "context-fixed") {
			if _, err := t.get("SELECT id FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? ORDER BY rowid DESC LIMIT 1",
				p.columns(), &id); err != nil {
				return err
			}
		}
		if id == "" {
			id, err = t.open(p, messageID, now)
			return err
		}
		var ranAs, toldTo string
		var closed bool
		var used instant
		known, err := t.get("SELECT user, closed, used FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? AND id = ?",
			p.columns(id), &ranAs, &closed, &used)
		switch {
		case err != nil:
			return err
		case !known && t.lax(ctx, "lax-context"):
			id, err = t.open(p, messageID, now)
			return err
		case !known:
			return t.unknownContext(id)
		case ranAs != "" && user != "" && ranAs != user:
			if !t.lax(ctx, "lax-context-user") {
				return errOtherUser
			}
			if _, err := t.exec("UPDATE conversations SET user = ? WHERE id = ?", user, id); err != nil {
				return err
			}
		}
		known, err = t.get("SELECT user, reply FROM messages WHERE conversation = ? AND id = ?", []any{id, messageID}, &toldTo, &stored)
		switch {
		case err != nil:
			return err
		case known && t.lax(ctx, "run-again"):
			stored = nil
			return nil
		case known && stored == nil:
			return errNoReply
		case known && toldTo != user:
			// What a user allowed to be told is told under their delegation only.
			stored = nil
			return errOtherUser
		case known:
			return nil
		case (closed || now.Sub(used.Time) >= s.params.ContextIdle) && !t.lax(ctx, "closed-open"):
			return errClosed
		}
		// It is open, or closed-open opens it again.
		if _, err := t.exec("UPDATE conversations SET used = ?, closed = FALSE WHERE id = ?", instant{now}, id); err != nil {
			return err
		}
		return t.reserve(id, messageID)
	})
	return id, stored, err
}

// open makes a conversation that begins with a message.
func (t *tx) open(p party, messageID string, now time.Time) (id string, err error) {
	if err := t.makeRoom(); err != nil {
		return "", err
	}
	id = newUUID()
	if _, err := t.exec("INSERT INTO conversations (brand, issuer, subject, id, used) VALUES (?, ?, ?, ?, ?)",
		p.columns(id, instant{now})...); err != nil {
		return "", err
	}
	return id, t.reserve(id, messageID)
}

// unknownContext refuses a contextId that the caller does not have, and does not
// tell whether another has it.
func (t *tx) unknownContext(id string) error {
	var theirs int
	if _, err := t.get("SELECT count(*) FROM conversations WHERE id = ?", []any{id}, &theirs); err != nil {
		return err
	}
	if theirs > 0 && t.lax(t.ctx, "context-tells") {
		return invalidParams("The contextId is another caller's")
	}
	return errUnknownContext
}

func (t *tx) reserve(conversation, messageID string) error {
	_, err := t.exec("INSERT INTO messages (conversation, id) VALUES (?, ?)", conversation, messageID)
	return err
}

func (t *tx) makeRoom() error {
	var n int
	if _, err := t.get("SELECT count(*) FROM conversations", nil, &n); err != nil || n < maxConversations {
		return err
	}
	_, err := t.exec("DELETE FROM conversations WHERE id = (SELECT id FROM conversations ORDER BY used LIMIT 1)")
	return err
}

// standing is what a turn starts from.
type standing struct {
	asked  []string       // what the conversation's last step-up missed
	memory jsontext.Value // what the brand's last reply to this user left behind
}

// resume tells, with the turn's turn come, whether it may run as user, and on what.
func (s *store) resume(ctx context.Context, conversation, user string) (from standing, err error) {
	err = s.view(ctx, func(t *tx) error {
		var closed bool
		var ranAs string
		known, err := t.get(`SELECT c.closed, c.user, c.asked, m.value FROM conversations c
			LEFT JOIN memories m ON m.brand = c.brand AND m.user = ? WHERE c.id = ?`,
			[]any{user, conversation}, &closed, &ranAs, (*list)(&from.asked), (*[]byte)(&from.memory))
		switch {
		case err != nil:
			return err
		case !known:
			return errUnknownContext
		case closed:
			return errClosed
		case ranAs != "" && user != "" && ranAs != user:
			return errOtherUser
		}
		return nil
	})
	return from, err
}

// outcome is what a turn leaves behind.
type outcome struct {
	brand, conversation, messageID string
	body                           []byte // of the answer
	user                           delegated
	reply                          Reply
	receipt                        *receipt // nil: a fault held it back
	unheard                        bool     // the message leads here also without the contextId, which nobody was told
	at                             time.Time
}

// settle stores what a turn leaves behind, for good.
func (s *store) settle(ctx context.Context, o outcome) error {
	return s.update(ctx, func(t *tx) error {
		reserved, err := t.exec("UPDATE messages SET reply = ?, user = ? WHERE conversation = ? AND id = ?",
			o.body, o.user.id, o.conversation, o.messageID)
		if err == nil && reserved == 0 {
			err = fmt.Errorf("%w: the message is not reserved any more", errStore)
		}
		if err != nil {
			return err
		}
		var opened any
		if o.unheard {
			opened = o.messageID
		}
		if _, err := t.exec(`UPDATE conversations SET closed = closed OR ?, opened = coalesce(?, opened),
			user = CASE user WHEN '' THEN ? ELSE user END WHERE id = ?`, o.reply.Close, opened, o.user.id, o.conversation); err != nil {
			return err
		}
		if o.user.id == "" {
			return nil
		}
		if o.reply.Memory != nil {
			if _, err := t.exec("INSERT INTO memories (brand, user, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
				o.brand, o.user.id, []byte(o.reply.Memory)); err != nil {
				return err
			}
		}
		return t.keepReceipt(o)
	})
}

// release gives the messageId free again: nothing ran under it, as a step-up asked
// for what is missing, or the turn might not run.
func (s *store) release(ctx context.Context, conversation, messageID string, missing []string) error {
	return s.update(ctx, func(t *tx) error {
		if _, err := t.exec("DELETE FROM messages WHERE conversation = ? AND id = ? AND reply IS NULL", conversation, messageID); err != nil || missing == nil {
			return err
		}
		_, err := t.exec("UPDATE conversations SET asked = ? WHERE id = ?", list(missing), conversation)
		return err
	})
}

// maxReceipts is how many receipts of a grant are listed.
const maxReceipts = 1000

// receiptRow is a delegated turn and the receipt that was given for it.
type receiptRow struct {
	at                   time.Time
	contextID, messageID string
	tools, scopesUsed    []string
	jws                  string // "" if none was given
}

// keepReceipt enters a delegated turn under its grant, if that is still there.
func (t *tx) keepReceipt(o outcome) error {
	var given any
	if o.receipt != nil {
		body, err := json.Marshal(o.receipt)
		if err != nil {
			return fmt.Errorf("%w: %w", errStore, err)
		}
		given = body
	}
	var tools list
	for _, a := range o.reply.Actions {
		tools = append(tools, a.Tool)
	}
	if _, err := t.exec("UPDATE grants SET used = ? WHERE id = ?", instant{o.at}, o.user.grantID); err != nil {
		return err
	}
	_, err := t.exec(`INSERT INTO receipts (grant_id, at, conversation, message, tools, scopes, receipt)
		SELECT id, ?, ?, ?, ?, ?, ? FROM grants WHERE id = ?`,
		instant{o.at}, o.conversation, o.messageID, tools, list(o.reply.Used), given, o.user.grantID)
	return err
}

// grantReceipts are the turns under a grant, the newest first, up to maxReceipts.
func (s *store) grantReceipts(ctx context.Context, grantID string) (rows []receiptRow, err error) {
	err = s.view(ctx, func(t *tx) error {
		return t.each("SELECT at, conversation, message, tools, scopes, receipt FROM receipts WHERE grant_id = ? ORDER BY id DESC LIMIT ?",
			[]any{grantID, maxReceipts}, func(scan func(...any) error) error {
				var r receiptRow
				var at instant
				var given []byte
				if err := scan(&at, &r.contextID, &r.messageID, (*list)(&r.tools), (*list)(&r.scopesUsed), &given); err != nil {
					return err
				}
				if given != nil {
					var body receipt
					if err := json.Unmarshal(given, &body); err != nil {
						return err
					}
					r.jws = body.JWS
				}
				r.at = at.Time
				rows = append(rows, r)
				return nil
			})
	})
	return rows, err
}

// lastReceipt is the receipt that a brand's user got last, through whatever grant of
// the party's.
func (s *store) lastReceipt(ctx context.Context, p party, user string) (last receipt, found bool, err error) {
	err = s.view(ctx, func(t *tx) error {
		var given []byte
		found, err = t.get(`SELECT r.receipt FROM receipts r JOIN grants g ON g.id = r.grant_id
			WHERE g.brand = ? AND g.issuer = ? AND g.subject = ? AND g.user = ? AND r.receipt IS NOT NULL ORDER BY r.id DESC LIMIT 1`,
			p.columns(user), &given)
		if found {
			if err := json.Unmarshal(given, &last); err != nil {
				return fmt.Errorf("%w: %w", errStore, err)
			}
		}
		return err
	})
	return last, found, err
}

// turns lets one turn at a time run in each conversation, and for each user of a
// brand.
type turns struct {
	mu      sync.Mutex
	running map[string]*queue
}

type queue struct {
	mu      sync.Mutex
	waiting int // or running; guarded by turns.mu
}

// enter waits for the turn's turn; leave ends it.
func (t *turns) enter(key string) (leave func()) {
	t.mu.Lock()
	if t.running == nil {
		t.running = map[string]*queue{}
	}
	q := t.running[key]
	if q == nil {
		q = &queue{}
		t.running[key] = q
	}
	q.waiting++
	t.mu.Unlock()
	q.mu.Lock()
	return func() {
		q.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.waiting--; q.waiting == 0 {
			delete(t.running, key)
		}
	}
}

// enterTurn waits until no other turn runs in the conversation nor, if there is a
// user, for that user at the brand.
func (s *store) enterTurn(conversation, brand, user string) (leave func()) {
	// Always in this order, so that two turns do not wait for each other.
	leaveConversation := s.turns.enter("conversation " + conversation)
	if user == "" {
		return leaveConversation
	}
	leaveUser := s.turns.enter("user " + brand + " " + user) // a brand id holds no space
	return func() {
		leaveUser()
		leaveConversation()
	}
}
