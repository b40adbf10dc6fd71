package agent

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Effect is what an operation does to the world, ranked: EffectInspect <
// EffectChange < EffectUnknown (AD-5). The zero value is none of them and
// prints as unknown.
type Effect int

// The effects, in rank order.
const (
	EffectInspect Effect = iota + 1 // looks, changes nothing
	EffectChange                    // changes something
	EffectUnknown                   // cannot be told, so treated as worse than a change
)

func (e Effect) String() string {
	switch e {
	case EffectInspect:
		return "inspect"
	case EffectChange:
		return "change"
	}
	return "unknown"
}

// MarshalText writes inspect, change or unknown.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads what MarshalText writes and refuses anything else.
func (e *Effect) UnmarshalText(text []byte) error {
	got := ParseEffect(string(text))
	if got.String() != string(text) {
		return fmt.Errorf("effect %q: must be inspect, change or unknown", text)
	}
	*e = got
	return nil
}

// ParseEffect reads a declared effect; anything outside the enum is
// EffectUnknown (AD-5).
func ParseEffect(s string) Effect {
	switch s {
	case "inspect":
		return EffectInspect
	case "change":
		return EffectChange
	}
	return EffectUnknown
}

// The word lists of AD-6 and AD-8, in the forms that count and in no other.
// An entry of several words is that sequence.
var (
	changeWords = phrases(
		"cancel", "refund", "rebook", "reschedule", "change", "modify", "update", "edit", "delete", "remove",
		"book", "reserve", "buy", "purchase", "pay", "transfer", "submit", "approve", "confirm",
		"upgrade", "downgrade", "subscribe", "unsubscribe", "renew", "redeem", "write", "close", "terminate",
		"stop", "withdraw", "ship", "reorder", "place an order",
		"send it", "send them", "send my", "send the",
		"return it", "return them", "return my", "return the",
	)
	inspectWords = phrases(
		"read", "view", "list", "look up", "status", "history", "check", "see", "show", "get", "find",
		"search", "track", "inspect", "upcoming", "past", "balance", "receipt", "receipts",
	)
	readWords = phrases("read", "view", "list", "look", "history", "status", "upcoming", "past")
)

// ClassifyText is the class of a message by its words (AD-6, AD-7): a change
// word wins over an inspect word, and over a question mark at the end.
func ClassifyText(text string) Effect {
	words, question := wordsOf(text)
	switch {
	case changeWords.in(words):
		return EffectChange
	case question, inspectWords.in(words):
		return EffectInspect
	}
	return EffectUnknown
}

// ClassifyScope is the class of a permission by its id and description (AD-8).
func ClassifyScope(id, description string) Effect {
	words, _ := wordsOf(id + " " + description)
	switch {
	case changeWords.in(words):
		return EffectChange
	case readWords.in(words):
		return EffectInspect
	}
	return EffectUnknown
}

// EffectOf is the computed effect of an operation (AD-5): the strongest of what
// was declared, what the text says and what the required scopes allow. An empty
// declaration counts for nothing; declaring inspect never lowers anything.
func EffectOf(declared, text string, scopes []Scope) Effect {
	e := ClassifyText(text)
	if declared != "" {
		e = max(e, ParseEffect(declared))
	}
	return max(e, EffectOfScopes(scopes))
}

// EffectOfScopes is the strongest class of the scopes: what a grant's token
// could do (AD-9). Without scopes it is EffectInspect.
func EffectOfScopes(scopes []Scope) Effect {
	e := EffectInspect
	for _, s := range scopes {
		e = max(e, s.Effect())
	}
	return e
}

// wordsOf splits a text into its words in lower case, and says whether it ends
// in a question mark. Compatibility forms are folded and invisible characters
// dropped, so that what reads as a word counts as it.
func wordsOf(text string) (words []string, question bool) {
	text = strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Cf, c) {
			return -1
		}
		return unicode.ToLower(c)
	}, norm.NFKC.String(text))
	words = strings.FieldsFunc(text, func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !unicode.IsMark(c)
	})
	return words, strings.HasSuffix(strings.TrimSpace(text), "?")
}

// phraseSet holds phrases under their first word.
type phraseSet map[string][][]string

func phrases(list ...string) phraseSet {
	s := phraseSet{}
	for _, p := range list {
		w := strings.Fields(p)
		s[w[0]] = append(s[w[0]], w[1:])
	}
	return s
}

func (s phraseSet) in(words []string) bool {
	for i, w := range words {
		for _, rest := range s[w] {
			if hasPrefix(words[i+1:], rest) {
				return true
			}
		}
	}
	return false
}

func hasPrefix(words, prefix []string) bool {
	if len(words) < len(prefix) {
		return false
	}
	for i := range prefix {
		if words[i] != prefix[i] {
			return false
		}
	}
	return true
}
