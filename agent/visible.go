package agent

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// invisible reports a character that nobody sees: a control (but for a line's end
// and a tab), one that only formats or is to be ignored, a variation selector, and
// a braille pattern without a dot. Text can be hidden in them, and a word behind
// them.
func invisible(c rune) bool {
	switch {
	case c == '\n' || c == '\t':
		return false
	case c == '\u2800':
		return true
	}
	return unicode.In(c, unicode.Cc, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Visible returns text without the characters that nobody sees. What a business
// says is kept in that form: a model reads what a person does not see.
func Visible(text string) string {
	if strings.IndexFunc(text, invisible) < 0 {
		return text
	}
	return strings.Map(func(c rune) rune {
		if invisible(c) {
			return -1
		}
		return c
	}, text)
}

// maxMarks is how many marks may stand on one character: more than any language has
// paint over the lines around it.
const maxMarks = 4

// WrittenOut returns text as a person decides on it, no character hidden (AP-2): one
// that does not show, or that changes how others show, stands in it as <U+202E>; a
// line's end too, so give it lines.
func WrittenOut(text string) string {
	var b strings.Builder
	marks := 0
	for _, c := range text {
		if marks++; !unicode.In(c, unicode.Mn, unicode.Me) {
			marks = 0
		}
		if unicode.IsPrint(c) && !invisible(c) && marks <= maxMarks {
			b.WriteRune(c)
		} else {
			fmt.Fprintf(&b, "<U+%04X>", c)
		}
	}
	return b.String()
}

// folded calls each with what every character of a text comes to when only what it
// reads as counts: compatibility forms and letters with marks taken apart, lower
// case, without what nobody sees and without marks. from and to are where in the
// text it stands.
func folded(text string, each func(c rune, from, to int)) {
	for i, c := range text {
		to := i + len(string(c))
		if c == unicode.ReplacementChar && (len(text) < to || text[i:to] != string(c)) {
			to = i + 1 // a byte that is no UTF-8
		}
		if c < 0x80 {
			if !invisible(c) {
				each(unicode.ToLower(c), i, to)
			}
			continue
		}
		for _, d := range norm.NFKD.String(string(c)) {
			if !invisible(d) && !unicode.In(d, unicode.Mn, unicode.Me) {
				each(unicode.ToLower(d), i, to)
			}
		}
	}
}

// lookalike is the Latin letter, in lower case, that a folded letter of another
// script looks like; other characters stay.
func lookalike(c rune) rune {
	if l, ok := lookalikes[c]; ok {
		return l
	}
	return c
}

// lookalikes are the letters of Unicode's confusables that an eye does not tell from
// the Latin ones, in lower case or in capitals.
var lookalikes = func() map[rune]rune {
	m := map[rune]rune{}
	for latin, others := range map[rune]string{
		'a': "\u0430\u03b1\u0251", // Cyrillic and Greek a, Latin alpha
		'b': "\u0432\u03b2\u044c",
		'c': "\u0441\u03f2",
		'd': "\u0501\u0257",
		'e': "\u0435\u03b5\u04bd",
		'g': "\u0261\u0581",
		'h': "\u04bb\u043d\u0570",
		'i': "\u0456\u03b9\u0131",
		'j': "\u0458\u03f3",
		'k': "\u043a\u03ba",
		'l': "\u04cf",
		'm': "\u043c\u03bc",
		'n': "\u0578\u057c\u03b7",
		'o': "\u043e\u03bf\u0585",
		'p': "\u0440\u03c1",
		'q': "\u051b\u0566",
		'r': "\u0433",
		's': "\u0455\ua731",
		't': "\u0442\u03c4",
		'u': "\u03c5\u057d",
		'v': "\u0475\u03bd",
		'w': "\u051d\u0461\u0448",
		'x': "\u0445\u03c7",
		'y': "\u0443\u04af\u03b3",
		'z': "\u03b6",
	} {
		for _, o := range others {
			m[o] = latin
		}
	}
	return m
}()

// unmarked is text without marks on its characters and without what nobody sees, its
// letters' case kept.
func unmarked(text string) string {
	return strings.Map(func(c rune) rune {
		if invisible(c) || unicode.In(c, unicode.Mn, unicode.Me) {
			return -1
		}
		return c
	}, norm.NFKD.String(text))
}
