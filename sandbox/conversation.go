package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of what is kept of conversations. Beyond maxConversations of an issuer's its
// idlest is forgotten, beyond allConversations the idlest of the issuer that has the
// most. A conversation with maxMessages is closed.
const (
	maxConversations = 5000
	allConversations = 10000
	maxMessages      = 1000
)

var (
	errUnknownContext = invalidParams("Unknown contextId")
	errClosed         = unsupported("Context is closed")
)

// begin opens or continues a conversation with a message. It returns the stored
// reply if there is one; else the message is reserved until settle or release, and its
// turn, which begins with enterTurn, is under way.
func (s *store) begin(ctx context.Context, p party, contextID, messageID string, user delegated, now time.Time) (id string, stored []byte, err error) {
	underWay := false
	err = s.update(ctx, func(t *tx) error {
		id, stored, err = t.begin(ctx, p, contextID, messageID, user, now)
		if underWay = err == nil && stored == nil; underWay {
			t.underWay[id]++
		}
		return err
	})
	if underWay && err != nil {
		s.ended(id)
	}
	return id, stored, err
}

// ended takes back what begin counted.
func (s *store) ended(conversation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay[conversation]--; s.underWay[conversation] <= 0 {
		delete(s.underWay, conversation)
	}
}

func (t *tx) begin(ctx context.Context, p party, contextID, messageID string, user delegated, now time.Time) (id string, stored []byte, err error) {
	if err := t.holds(ctx, user, now); err != nil {
		return "", nil, err
	}
	id, err = t.find(ctx, p, contextID, messageID)
	if err != nil {
		return "", nil, err
	}
	if id == "" {
		id, err = t.open(p, messageID, now)
		return id, nil, err
	}
	var ranAs string
	var closed bool
	var used instant
	known, err := t.get("SELECT user, closed, used FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? AND id = ?",
		p.columns(id), &ranAs, &closed, &used)
	switch {
	case err != nil:
		return "", nil, err
	case !known && t.lax(ctx, "lax-context"):
		id, err = t.open(p, messageID, now)
		return id, nil, err
	case !known:
		return "", nil, t.unknownContext(id)
	}
	if err := t.join(ctx, id, ranAs, user.id); err != nil {
		return "", nil, err
	}
	if stored, known, err = t.told(ctx, id, messageID, user.id); err != nil || known {
		return id, stored, err
	}
	full, err := t.full(id)
	switch {
	case err != nil:
		return "", nil, err
	case (closed || full || now.Sub(used.Time) >= t.params.ContextIdle) && !t.lax(ctx, "closed-open"):
		return "", nil, errClosed
	}
	// It is open, or closed-open opens it again.
	if _, err := t.exec("UPDATE conversations SET used = ?, closed = FALSE WHERE id = ?", instant{now}, id); err != nil {
		return "", nil, err
	}
	return id, nil, t.reserve(id, messageID)
}

// find returns the conversation that a message is for, "" for a new one.
func (t *tx) find(ctx context.Context, p party, contextID, messageID string) (id string, err error) {
	if contextID != "" {
		return contextID, nil
	}
	_, err = t.get("SELECT id FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? AND opened = ? ORDER BY rowid DESC LIMIT 1",
		p.columns(messageID), &id)
	if err == nil && id == "" && t.lax(ctx, "context-fixed") {
		_, err = t.get("SELECT id FROM conversations WHERE brand = ? AND issuer = ? AND subject = ? ORDER BY rowid DESC LIMIT 1", p.columns(), &id)
	}
	return id, err
}

// join refuses a user in a conversation that ran as another.
func (t *tx) join(ctx context.Context, conversation, ranAs, user string) error {
	if ranAs == "" || user == "" || ranAs == user {
		return nil
	}
	if !t.lax(ctx, "lax-context-user") {
		return errOtherUser
	}
	_, err := t.exec("UPDATE conversations SET user = ? WHERE id = ?", user, conversation)
	return err
}

// told returns the reply to a message that is known. It is nil if the message is to run
// again.
func (t *tx) told(ctx context.Context, conversation, messageID, user string) (stored []byte, known bool, err error) {
	var to string
	known, err = t.get("SELECT user, reply FROM messages WHERE conversation = ? AND id = ?", []any{conversation, messageID}, &to, &stored)
	switch {
	case err != nil || !known:
		return nil, false, err
	case t.lax(ctx, "run-again"):
		return nil, true, nil
	case stored == nil:
		return nil, true, errNoReply
	case to != user:
		// What a user allowed to be told is told under their delegation only.
		return nil, true, errOtherUser
	}
	return stored, true, nil
}

// full tells whether a conversation has as many messages as it may.
func (t *tx) full(conversation string) (bool, error) {
	var n int
	_, err := t.get("SELECT count(*) FROM messages WHERE conversation = ?", []any{conversation}, &n)
	return n >= maxMessages, err
}

// holds refuses a delegation that has ended since it was verified.
func (t *tx) holds(ctx context.Context, user delegated, now time.Time) error {
	if user.id == "" {
		return nil
	}
	if g, found, err := t.grant(user.grantID); err != nil {
		return err
	} else if !found || !g.holds(now) {
		return errEnded
	}
	if !user.expires.IsZero() && !now.Before(user.expires) && !t.lax(ctx, "lax-delegation-expired") {
		return errEnded
	}
	return nil
}

// open makes a conversation that begins with a message.
func (t *tx) open(p party, messageID string, now time.Time) (id string, err error) {
	if err := t.makeRoom(p.issuer); err != nil {
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

// makeRoom forgets a conversation if there are too many for one more of an issuer's.
func (t *tx) makeRoom(issuer string) error {
	from, err := t.crowded("conversations", issuer, maxConversations, allConversations)
	if err != nil || from == "" {
		return err
	}
	// What was never answered goes last: asked for again, it is told to have no reply.
	var idlest string
	found, err := t.get(`SELECT id FROM conversations c WHERE issuer = ?
		AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation = c.id AND reply IS NULL) ORDER BY used LIMIT 1`, []any{from}, &idlest)
	if err == nil && !found {
		err = t.each("SELECT id FROM conversations WHERE issuer = ? ORDER BY used", []any{from}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			if idlest == "" && t.underWay[id] == 0 {
				idlest = id
			}
			return err
		})
	}
	if err != nil {
		return err
	}
	// If a turn is under way in each, as many calls are being answered right now.
	_, err = t.exec("DELETE FROM conversations WHERE id = ?", idlest)
	return err
}

// crowded tells of which issuer a row must go before one of an issuer's is added to a
// table: of the issuer itself if it has as many as each may have, else, if there are as
// many as all may have, of the one that has the most. "": there is room.
func (t *tx) crowded(table, issuer string, each, all int) (from string, err error) {
	var n int
	if _, err := t.get("SELECT count(*) FROM "+table+" WHERE issuer = ?", []any{issuer}, &n); err != nil || n >= each {
		return issuer, err
	}
	if _, err := t.get("SELECT count(*) FROM "+table, nil, &n); err != nil || n < all {
		return "", err
	}
	_, err = t.get("SELECT issuer FROM "+table+" GROUP BY issuer ORDER BY count(*) DESC LIMIT 1", nil, &from)
	return from, err
}

// standing is what a turn starts from.
type standing struct {
	asked  []string       // what the conversation's last step-up missed
	memory jsontext.Value // what the brand's last reply to this user left behind
}

// resume tells, with the turn's turn come, whether it may run as user, and on what.
func (s *store) resume(ctx context.Context, conversation string, user delegated, now time.Time) (from standing, err error) {
	err = s.update(ctx, func(t *tx) error {
		if err := t.holds(ctx, user, now); err != nil {
			return err
		}
		var closed bool
		var ranAs string
		known, err := t.get(`SELECT c.closed, c.user, c.asked, m.value FROM conversations c
			LEFT JOIN memories m ON m.brand = c.brand AND m.user = ? WHERE c.id = ?`,
			[]any{user.id, conversation}, &closed, &ranAs, (*list)(&from.asked), (*[]byte)(&from.memory))
		switch {
		case err != nil:
			return err
		case !known:
			return errUnknownContext
		case closed:
			return errClosed
		case ranAs != "" && user.id != "" && ranAs != user.id:
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
// user, for that user at the brand. leave ends the turn that begin began.
func (s *store) enterTurn(conversation, brand, user string) (leave func()) {
	// Always in this order, so that two turns do not wait for each other.
	leaveConversation := s.turns.enter("conversation " + conversation)
	leaveUser := func() {}
	if user != "" {
		leaveUser = s.turns.enter("user " + brand + " " + user) // a brand id holds no space
	}
	return func() {
		leaveUser()
		leaveConversation()
		s.ended(conversation)
	}
}
