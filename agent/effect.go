package agent

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
	w := wordsOf(text)
	switch {
	case w.change():
		return EffectChange
	case w.odd:
		return EffectUnknown
	case w.question, inspectWords.in(w.words):
		return EffectInspect
	}
	return EffectUnknown
}

// ClassifyScope is the class of a permission by its id and description (AD-8).
func ClassifyScope(id, description string) Effect {
	w := wordsOf(id + " " + description)
	switch {
	case w.change():
		return EffectChange
	case !w.odd && readWords.in(w.words):
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

// wording is what a text reads as.
type wording struct {
	words    []string // in lower case, folded
	tight    []bool   // of each word: nothing parts it from the one before but a sign, or a line's end
	question bool     // it ends in a question mark
	odd      bool     // it is written so that its words cannot be told
}

// maxSpelled is how many single letters in a row are still no word spelled out:
// n'y a-t-il.
const maxSpelled = 4

// wordsOf splits a text into its words. Compatibility forms are folded, invisible
// characters and marks dropped, so that what reads as a word counts as it.
func wordsOf(text string) (w wording) {
	var word, gap strings.Builder
	spelled, last := 0, ' '
	end := func() {
		if word.Len() == 0 {
			return
		}
		w.words = append(w.words, word.String())
		w.tight = append(w.tight, !strings.ContainsAny(gap.String(), " \t"))
		if spelled++; !spells(word.String()) {
			spelled = 0
		}
		w.odd = w.odd || spelled > maxSpelled || mixed(word.String())
		word.Reset()
		gap.Reset()
	}
	folded(text, func(c rune, _, _ int) {
		if !unicode.IsSpace(c) {
			last = c
		}
		if unicode.IsLetter(c) || unicode.IsDigit(c) || unicode.IsMark(c) {
			word.WriteRune(c)
			return
		}
		end()
		gap.WriteRune(c)
	})
	end()
	w.question = last == '?'
	return w
}

// spells reports a word of one letter.
func spells(word string) bool {
	c, n := utf8.DecodeRuneInString(word)
	return n == len(word) && unicode.In(c, unicode.Latin, unicode.Cyrillic, unicode.Greek)
}

// change reports a change word, also one in letters of another script that look the
// same, or one that is taken apart: can-cel, can'cel, c a n c e l.
func (w wording) change() bool {
	words := make([]string, len(w.words))
	for i, word := range w.words {
		words[i] = strings.Map(lookalike, word)
	}
	if changeWords.in(words) {
		return true
	}
	for i := range words {
		whole := words[i]
		for j := i + 1; j < len(words) && len(whole) < maxChangeWord; j++ {
			if !w.tight[j] && !(spells(words[j-1]) && spells(words[j])) {
				break
			}
			if whole += words[j]; changeWords.in([]string{whole}) {
				return true
			}
		}
	}
	return false
}

// maxChangeWord is the length of the longest change word.
var maxChangeWord = func() (n int) {
	for w := range changeWords {
		n = max(n, len(w))
	}
	return n
}()

// mixed reports a word of Latin letters and of those of a script in which some look
// like them. No language has such words.
func mixed(word string) bool {
	latin, other := false, false
	for _, c := range word {
		latin = latin || unicode.Is(unicode.Latin, c)
		other = other || unicode.In(c, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Coptic, unicode.Cherokee, unicode.Lisu)
	}
	return latin && other
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
