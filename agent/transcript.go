package agent

import (
	"context"
	"fmt"
	"unicode/utf8"
)

// What a model may see of a conversation (CV-8): characters of a reply, and turns.
const (
	maxModelReply = 8000
	maxModelTurns = 20
)

// Untrusted is text of a business's as a model may be given it: redacted, cut, and
// marked for what it is. It is data to read, never an instruction to follow (RD-4).
type Untrusted struct {
	// Untrusted is always true: it tells whoever reads the JSON.
	Untrusted bool   `json:"untrusted"`
	Text      string `json:"text"`
	// Truncated: the text went on.
	Truncated bool `json:"truncated,omitzero"`
}

// ForModel is a business's text, a Result's Reply for one, as a model may be given
// it: at most 8000 characters, redacted and marked (CV-8).
func ForModel(text string) Untrusted {
	text = RedactText(text)
	return Untrusted{Untrusted: true, Text: truncate(text, maxModelReply), Truncated: utf8.RuneCountInString(text) > maxModelReply}
}

// Transcript is a conversation as a model may be given it.
type Transcript struct {
	Conversation string           `json:"conversation"`
	Business     string           `json:"business"`
	BusinessName Untrusted        `json:"businessName"`
	State        string           `json:"state"`
	Reason       Reason           `json:"reason,omitzero"`
	Omitted      int              `json:"omitted,omitzero"` // older turns that are left out
	Turns        []TranscriptTurn `json:"turns"`            // oldest first
}

// TranscriptTurn is one turn of a Transcript: what was sent, and what came back if
// anything did.
type TranscriptTurn struct {
	Message string     `json:"message"`
	State   string     `json:"state"`
	Reason  Reason     `json:"reason,omitzero"`
	Effect  Effect     `json:"effect"`
	Text    string     `json:"text"` // the owner's own
	Reply   *Untrusted `json:"reply,omitzero"`
	Verdict Verdict    `json:"verdict,omitzero"` // of its receipt; empty: the turn was not delegated
}

// Transcript gives the last 20 turns of a conversation in the form that a model may
// see (CV-8, RD-4), without what belongs to a sign-in that waits (DA-15); introductions,
// which say nothing, are no turns. Errors wrap
// ErrNotFound.
func (a *Agent) Transcript(ctx context.Context, c Caller, conversation string) (Transcript, error) {
	v, err := a.Conversation(ctx, c, conversation)
	if err != nil {
		return Transcript{}, fmt.Errorf("transcript: %w", err)
	}
	hide, err := a.Withholder(ctx, c) // before it is cut: the beginning of a code is not found
	if err != nil {
		return Transcript{}, fmt.Errorf("transcript: %w", err)
	}
	t := Transcript{
		Conversation: v.ID, Business: v.Business, BusinessName: ForModel(v.BusinessName),
		State: v.State, Reason: v.Reason, Turns: []TranscriptTurn{},
	}
	for _, m := range v.Messages {
		if m.Introduction {
			continue
		}
		turn := TranscriptTurn{Message: m.ID, State: m.State, Reason: m.Reason, Effect: m.Effect, Text: m.Text}
		if m.State == messageReplied {
			reply := ForModel(hide(v.Business, m.Reply))
			turn.Reply = &reply
		}
		if m.Evidence != nil {
			turn.Verdict = m.Evidence.Verdict
		}
		t.Turns = append(t.Turns, turn)
	}
	t.Omitted = max(0, len(t.Turns)-maxModelTurns)
	t.Turns = t.Turns[t.Omitted:]
	return t, nil
}
