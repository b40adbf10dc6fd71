package agent

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
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
	return classOf(text, func(w wording) bool { return w.question || inspectWords.in(w.words) })
}

// ClassifyScope is the class of a permission by its id and description (AD-8).
func ClassifyScope(id, description string) Effect {
	return classOf(id+" "+description, func(w wording) bool { return readWords.in(w.words) })
}

// classOf is the class of a text of which looks tells what is an inspection. A change
// in any of its readings is one, and an inspection is one in all of them.
func classOf(text string, looks func(wording) bool) Effect {
	e := EffectInspect
	for _, w := range readings(text) {
		switch {
		case w.change():
			return EffectChange
		case w.odd || !looks(w):
			e = EffectUnknown
		}
	}
	return e
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

// scopesElsewhere returns EffectElsewhere of an operation's business.
func (a *Agent) scopesElsewhere(ctx context.Context, op *operation) (func(ids []string) Effect, error) {
	if len(op.required) == 0 && op.grant == nil {
		return func([]string) Effect { return 0 }, nil
	}
	known, err := a.Businesses(ctx, op.caller)
	return func(ids []string) Effect { return a.businessView(op.business).EffectElsewhere(known, ids) }, err
}

// EffectElsewhere is the strongest class that scopes of these ids have on the other known
// cards of the same interface (AD-8): a card on another host makes no permission milder
// than the business itself says it is. Nor does it make one worse: where the card is the
// business's own, only cards from there count.
func (b BusinessView) EffectElsewhere(known []BusinessView, ids []string) (e Effect) {
	for _, o := range known {
		if o.ID == b.ID || !o.Supported || place(o.InterfaceURL) != place(b.InterfaceURL) || b.CardElsewhere() == "" && o.CardElsewhere() != "" {
			continue
		}
		for _, s := range o.Scopes {
			if slices.Contains(ids, s.ID) {
				e = max(e, s.Effect())
			}
		}
	}
	return e
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

// affirmation is wording by which a business may take a message for the owner's word.
type affirmation struct {
	words  phraseSet
	begins bool // only where it begins what is said: "ok, show it", not "is it ok to bring a dog?"
}

// The affirmations. They are few: a task that goes on with a conversation also needs an
// inspect word, and none where the business asked something (MayConfirm).
var affirmations = []affirmation{
	// Hardly anybody looks for something in these words.
	{phrases("yes", "yep", "yeah", "agreed", "proceed", "go ahead", "do it", "please do", "get on with it"), false},
	// These are part of many a question.
	{phrases("ok", "okay", "sure", "fine", "agree", "accept", "approve", "approved", "confirm", "confirmed"), true},
	// So are these, which choose; # is a number, or a letter by itself.
	{phrases("the first one", "the second one", "the third one", "the fourth one", "the fifth one", "the last one", "option #"), true},
}

// fillers are passed over where an affirmation begins: well, I agree.
var fillers = phrases("i", "we", "and", "so", "then", "well", "oh", "please")

// MayConfirm reports whether a business could take a task's message for the owner's
// word, which no task gives (AD-2, AP-1): it says yes to something or chooses; or it goes
// on with a conversation (in, nil if it begins one) in which anything but a look was
// sent, or whose business asked something last, or may have; or without a word of its own
// that looks, for a question mark makes an inspection of any words (AD-6). What a task
// sends so is no inspection.
func MayConfirm(text string, in *ConversationView) bool {
	for _, w := range readings(text) {
		if w.affirms() || in != nil && !inspectWords.in(w.words) {
			return true
		}
	}
	return in != nil && in.awaits()
}

// awaits reports whether a conversation may be waiting for the owner's word: the business's
// last answer asks something, or is not of text alone.
func (v *ConversationView) awaits() bool {
	for _, m := range v.Messages {
		if !m.Introduction && m.Effect != EffectInspect || m.State == messageUnknown {
			return true
		}
	}
	said, replied := v.lastReply()
	return replied && (wordless(said) || asks(said))
}

// questionMarks are those of all scripts that are no form of the usual one.
const questionMarks = "?\u00bf\u037e\u055e\u061f\u1367\u1945\u203d\u2370\u2753\u2754\u2cfa\u2cfb\u2e2e\u2e54\ua60f\ua6f7\U00011143\U0001e95f"

// query is what begins the query of a link: https://air.example/trip?id=
var query = regexp.MustCompile(`://[!->@-~]*\?[\w.%~-]+=`)

// asks reports whether a business's words ask something: they have a question mark of
// any script, and not only in a link, or there is more than what is kept of them.
func asks(said string) bool {
	if strings.Contains(said, Redacted) || strings.Contains(said, partsLeftOut) || utf8.RuneCountInString(said) >= maxReply {
		return true
	}
	said = query.ReplaceAllString(said, " ")
	var before rune
	found := false
	folded(said, func(c rune, _, _ int) {
		// Greek asks by a semicolon.
		found = found || strings.ContainsRune(questionMarks, c) || c == ';' && unicode.Is(unicode.Greek, before)
		before = c
	})
	return found || strings.ContainsAny(said, questionMarks) // a Greek one folds to a semicolon
}

// affirms reports an affirmation, or a text that does nothing but choose: numbers,
// letters by themselves, signs.
func (w wording) affirms() bool {
	words, bare := w.plain(), true
	bared, end := each(words, unnumbered), 0 // of the sentence
	for i, word := range words {
		bare = bare && chooses(word)
		for end <= i || end < len(words) && !w.anew[end] {
			end++
		}
		begins := w.begins(i)
		for _, a := range affirmations {
			if a.begins && !begins {
				continue
			}
			if a.words.at(words[i:end]) || a.words.at(bared[i:end]) || w.joined(words, i, a.words) || w.joined(bared, i, a.words) {
				return true
			}
		}
	}
	return bare
}

// begins reports a word that begins what is said: behind a sign, or behind fillers
// alone.
func (w wording) begins(i int) bool {
	for ; i > 0 && !w.parted[i]; i-- {
		if !fillers.in(w.words[i-1 : i]) {
			return false
		}
	}
	return true
}

// chooses reports a number, or a letter by itself.
func chooses(word string) bool {
	return utf8.RuneCountInString(word) == 1 || strings.Trim(word, "0123456789") == ""
}

// wording is what a text reads as.
type wording struct {
	words    []string // in lower case, folded
	tight    []bool   // of each word: nothing parts it from the one before but a sign, or a line's end
	parted   []bool   // of each word: a sign parts it from the one before, and not one within words
	anew     []bool   // of each word: a sentence has ended before it
	question bool     // it ends in a question mark
	odd      bool     // it is written so that its words cannot be told
}

// maxSpelled is how many single letters in a row are still no word spelled out:
// n'y a-t-il.
const maxSpelled = 4

// readings are what a text reads as, for people and machines: what nobody sees is
// nothing to the one, and to the other a blank or a line's end.
func readings(text string) []wording {
	all := []wording{wordsOf(text)}
	if strings.ContainsFunc(text, invisible) {
		all = append(all, wordsOf(strings.Map(func(c rune) rune {
			if invisible(c) {
				return '\n'
			}
			return c
		}, text)))
	}
	return all
}

// wordsOf splits a text into its words. Compatibility forms are folded, invisible
// characters and marks dropped, so that what reads as a word counts as it. A word ends
// where letters of another sort begin, as people write them beside each other.
func wordsOf(text string) (w wording) {
	var word, gap strings.Builder
	spelled, last, sort := 0, ' ', 0
	end := func() {
		if word.Len() == 0 {
			return
		}
		w.words = append(w.words, word.String())
		blank := strings.ContainsAny(gap.String(), " \t")
		w.tight = append(w.tight, !blank)
		w.parted = append(w.parted, strings.Trim(gap.String(), " \t-'\u2019_") != "" || blank && strings.Contains(gap.String(), "-"))
		w.anew = append(w.anew, strings.ContainsAny(gap.String(), ".?!") && strings.ContainsAny(gap.String(), " \t\n"))
		if spelled++; !spells(word.String()) {
			spelled = 0
		}
		w.odd = w.odd || spelled > maxSpelled || mixed(word.String()) || strings.ContainsFunc(word.String(), strange)
		word.Reset()
		gap.Reset()
		sort = 0
	}
	folded(text, func(c rune, from, to int) {
		if !unicode.IsSpace(c) {
			last = c
		}
		if (unicode.IsLetter(c) || unicode.IsDigit(c) || unicode.IsMark(c)) && !apostrophe(c) {
			if now := sortOf(c, text[from:to]); now != 0 {
				if sort != 0 && now != sort {
					end()
				}
				sort = now
			}
			word.WriteRune(c)
			return
		}
		w.odd = w.odd || unicode.Is(unicode.Braille, c)
		end()
		gap.WriteRune(c)
	})
	end()
	w.question = last == '?'
	return w
}

// sortOf tells the sort of a letter that a character folds to: one of a symbol, one of a
// script of which mixed knows none, or any other. Digits and marks have none, 0.
func sortOf(c rune, of string) int {
	switch of, _ := utf8.DecodeRuneInString(of); {
	case unicode.In(of, unicode.So, unicode.No) || of == '\u00aa' || of == '\u00ba':
		return 1
	case !unicode.IsLetter(c):
		return 0
	case unicode.Is(unicode.Latin, c) || unicode.In(c, likeLatin...):
		return 2
	}
	return 3
}

// spells reports a word of one letter.
func spells(word string) bool {
	c, n := utf8.DecodeRuneInString(word)
	return n == len(word) && unicode.In(c, unicode.Latin, unicode.Cyrillic, unicode.Greek)
}

// change reports a change word, also one in letters of another script, or digits, that
// look the same, one with digits at its ends, or one that is taken apart: can-cel,
// can'cel, c a n c e l, c4nce1, cancel2.
func (w wording) change() bool {
	words := w.plain()
	bared := each(words, unnumbered)
	for i := range words {
		if w.has(words, i, changeWords) || w.has(bared, i, changeWords) {
			return true
		}
	}
	words, bared = each(words, shape), each(bared, shape)
	for i := range words {
		if w.has(words, i, changeShapes) || w.has(bared, i, changeShapes) {
			return true
		}
	}
	return false
}

// plain are the words in the letters that they look like.
func (w wording) plain() []string {
	return each(w.words, func(word string) string { return strings.Map(lookalike, word) })
}

func each(words []string, f func(string) string) []string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = f(word)
	}
	return out
}

// unnumbered is a word without the digits at its ends, unless it is a number.
func unnumbered(word string) string {
	return cmp.Or(strings.Trim(word, "0123456789"), word)
}

// has reports whether one of the phrases begins at a word, or is one word that is taken
// apart from there on.
func (w wording) has(words []string, i int, p phraseSet) bool {
	return p.at(words[i:]) || w.joined(words, i, p)
}

// joined reports whether one of the words is taken apart from a word on.
func (w wording) joined(words []string, i int, p phraseSet) bool {
	whole := words[i]
	for j := i + 1; j < len(words) && len(whole) < maxChangeWord; j++ {
		if !w.tight[j] && !(spells(words[j-1]) && spells(words[j])) {
			break
		}
		if whole += words[j]; p.at([]string{whole}) {
			return true
		}
	}
	return false
}

// shape is a word without the difference between letters and digits that look alike.
func shape(word string) string {
	return strings.Map(func(c rune) rune {
		if i := strings.IndexRune("01i3457", c); i >= 0 {
			return rune("olleast"[i])
		}
		return c
	}, word)
}

// changeShapes are the change words by their shapes.
var changeShapes = func() phraseSet {
	s := phraseSet{}
	for first, all := range changeWords {
		for _, rest := range all {
			var shaped []string
			for _, word := range rest {
				shaped = append(shaped, shape(word))
			}
			s[shape(first)] = append(s[shape(first)], shaped)
		}
	}
	return s
}()

// maxChangeWord is the length of the longest change word.
var maxChangeWord = func() (n int) {
	for w := range changeWords {
		n = max(n, len(w))
	}
	return n
}()

// likeLatin are the scripts in which some letters look like Latin ones, and which people
// write.
var likeLatin = []*unicode.RangeTable{unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Coptic, unicode.Cherokee, unicode.Lisu}

// mixed reports a word of Latin letters and of those of a script in which some look
// like them. No language has such words.
func mixed(word string) bool {
	latin, other := false, false
	for _, c := range word {
		latin = latin || unicode.Is(unicode.Latin, c)
		other = other || unicode.In(c, likeLatin...)
	}
	return latin && other
}

// strange reports a letter that may pass for a Latin one to the eye and is not read here
// as that: a Latin one that no alphabet of many people has, or one of a script whose
// letters look like them. The scripts that lookalikes has are none of these.
func strange(c rune) bool {
	switch {
	case unicode.Is(unicode.Latin, c):
		return c > '\u017f' && c != '\u0259' && lookalike(c) == c // the schwa of Azerbaijan
	case unicode.In(c, unicode.Cherokee, unicode.Lisu, unicode.Coptic, unicode.Canadian_Aboriginal, unicode.Deseret, unicode.Osage,
		unicode.Old_Italic, unicode.Runic, unicode.Carian, unicode.Lycian, unicode.Lydian, unicode.Gothic, unicode.Elbasan,
		unicode.Shavian, unicode.Tifinagh, unicode.Vai, unicode.Bamum, unicode.Warang_Citi, unicode.Caucasian_Albanian):
		return true
	}
	return false
}

// apostrophe reports a letter that is written as an apostrophe, or looks like a sign: it
// parts words as that does.
func apostrophe(c rune) bool { return c >= '\u02b9' && c <= '\u02df' }

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
	for i := range words {
		if s.at(words[i:]) {
			return true
		}
	}
	return false
}

// at reports whether words begin with one of the phrases.
func (s phraseSet) at(words []string) bool {
	for _, rest := range s[words[0]] {
		if hasPrefix(words[1:], rest) {
			return true
		}
	}
	return false
}

func hasPrefix(words, prefix []string) bool {
	if len(words) < len(prefix) {
		return false
	}
	for i := range prefix {
		if words[i] != prefix[i] && !(prefix[i] == "#" && chooses(words[i])) {
			return false
		}
	}
	return true
}
