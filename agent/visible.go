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

// What stands between words is shown as it is up to these; more of it moves what comes
// after, or stands before, out of sight.
const (
	maxEmptyLines = 2
	maxBlanks     = 20
)

// WrittenOutLines returns a text as the lines in which a person decides on it (AP-2):
// each is WrittenOut, and more than two empty ones on end stand there as one line,
// <3899 empty lines>.
func WrittenOutLines(text string) []string {
	var out []string
	empty := 0 // of the last ones
	for line := range strings.SplitSeq(text, "\n") {
		if empty++; strings.Trim(line, " ") != "" {
			empty = 0
		}
		switch shown := fmt.Sprintf("<%d empty lines>", empty); {
		case empty <= maxEmptyLines:
			out = append(out, WrittenOut(line))
		case empty == maxEmptyLines+1:
			out = append(out[:len(out)-maxEmptyLines], shown)
		default:
			out[len(out)-1] = shown
		}
	}
	return out
}

// WrittenOut returns text as a person decides on it, no character hidden (AP-2): one
// that does not show, or that changes how others show, stands in it as <U+202E>; a
// line's end too, so give it lines. More than twenty blanks on end, or of any character
// that does not show, stand in it as <2000 blanks> or <2000 x U+202E>.
func WrittenOut(text string) string {
	var b strings.Builder
	marks := 0
	skip := 0 // of a run that stands there already
	for i, c := range text {
		if skip > 0 {
			skip--
			continue
		}
		if c == ' ' || !unicode.IsPrint(c) || invisible(c) {
			if n := runOf(c, text[i:]); n > maxBlanks {
				if skip = n - 1; c == ' ' {
					fmt.Fprintf(&b, "<%d blanks>", n)
				} else {
					fmt.Fprintf(&b, "<%d x U+%04X>", n, c)
				}
				marks = 0
				continue
			}
		}
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

// runOf is how often a character stands at the beginning of a text.
func runOf(c rune, text string) int {
	n := 0
	for _, d := range text {
		if d != c {
			break
		}
		n++
	}
	return n
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
		for _, d := range norm.NFKD.String(drawn(c)) {
			if !invisible(d) && !unicode.In(d, unicode.Mn, unicode.Me) {
				each(unicode.ToLower(digit(d)), i, to)
			}
		}
	}
}

// drawn is what a symbol that is drawn from letters or a digit shows, where
// compatibility forms do not tell: letters on a black square or disc, those that make
// flags, and digits on a disc. Others stay.
func drawn(c rune) string {
	for _, r := range []struct{ from, to, is rune }{
		{0x1f150, 0x1f169, 'a'}, {0x1f170, 0x1f189, 'a'}, {0x1f1e6, 0x1f1ff, 'a'}, {0x2776, 0x277e, '1'}, {0x2780, 0x2788, '1'}, {0x278a, 0x2792, '1'},
	} {
		if c >= r.from && c <= r.to {
			return string(r.is + c - r.from)
		}
	}
	if c >= 0x1f18e && c <= 0x1f19a && c != 0x1f18f && c != 0x1f190 {
		return [...]string{"ab", "", "", "cl", "cool", "free", "id", "new", "ng", "ok", "sos", "up", "vs"}[c-0x1f18e]
	}
	return string(c)
}

// digit is the usual one for that of another script; other characters stay. Those of a
// script stand together, from its zero on.
func digit(c rune) rune {
	if c < 0x80 || !unicode.IsDigit(c) {
		return c
	}
	for _, r := range unicode.Nd.R16 {
		if c >= rune(r.Lo) && c <= rune(r.Hi) {
			return '0' + (c-rune(r.Lo))%10
		}
	}
	for _, r := range unicode.Nd.R32 {
		if c >= rune(r.Lo) && c <= rune(r.Hi) {
			return '0' + (c-rune(r.Lo))%10
		}
	}
	return c
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
// the Latin ones, or hardly, in lower case or in capitals: of other scripts, small
// capitals, and those with a hook or a stroke.
var lookalikes = func() map[rune]rune {
	m := map[rune]rune{}
	for latin, others := range map[rune]string{
		'a': "\u0430\u03b1\u0251\u1d00\u2c6d\u2c65", // Cyrillic and Greek a, Latin alpha, small capital
		'b': "\u0432\u03b2\u044c\u0299\u0253\u0180\u0183\u0185",
		'c': "\u0441\u03f2\u1d04\u0188\u023c\u2184",
		'd': "\u0501\u0257\u1d05\u0256\u0111\u018c",
		'e': "\u0435\u03b5\u04bd\u1d07\u025b\u0247",
		'f': "\ua730\u0192",
		'g': "\u0261\u0581\u0262\u0260\u01e5",
		'h': "\u04bb\u043d\u0570\u029c\u0127\u0266",
		'i': "\u0456\u03b9\u0131\u026a\u0268\u0269",
		'j': "\u0458\u03f3\u1d0a\u0249\u0237",
		'k': "\u043a\u03ba\u1d0b\u0199",
		'l': "\u04cf\u029f\u0142\u019a\u026b\u026d",
		'm': "\u043c\u03bc\u1d0d\u0271",
		'n': "\u0578\u057c\u03b7\u0274\u0272\u0273\u014b\u019e",
		'o': "\u043e\u03bf\u0585\u1d0f\u00f8\u0254\u0275\u2c7a",
		'p': "\u0440\u03c1\u1d18\u01a5\u1d7d",
		'q': "\u051b\u0566\ua7af\u024b",
		'r': "\u0433\u0280\u027d\u027e\u024d",
		's': "\u0455\ua731\u0282\u023f",
		't': "\u0442\u03c4\u1d1b\u0167\u01ad\u0288",
		'u': "\u03c5\u057d\u1d1c\u0289\u028a",
		'v': "\u0475\u03bd\u1d20\u028b",
		'w': "\u051d\u0461\u0448\u1d21\u2c73",
		'x': "\u0445\u03c7",
		'y': "\u0443\u04af\u03b3\u028f\u01b4\u024f",
		'z': "\u03b6\u1d22\u01b6\u0225\u0290\u0240",
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
