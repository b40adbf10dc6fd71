package console

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// moment is a time on the page: in UTC, to the second, and how far from now.
type moment struct {
	Machine string // RFC 3339
	Text    string
	Away    string // "in 27 min", "3 min ago"; "" if there is no now to tell by
}

func momentAt(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	t = t.UTC()
	m := moment{Machine: t.Format(time.RFC3339), Text: stamp(t, now)}
	if !now.IsZero() {
		m.Away = away(t, now)
	}
	return m
}

// String says it in a sentence.
func (m moment) String() string {
	if m.Away == "" {
		return m.Text
	}
	return m.Text + " (" + m.Away + ")"
}

// stamp is a time with its date, and its year if that is another one.
func stamp(t, now time.Time) string {
	if t.UTC().Year() != now.UTC().Year() {
		return t.UTC().Format("2 Jan 2006 15:04:05 UTC")
	}
	return t.UTC().Format("2 Jan 15:04:05 UTC")
}

func away(t, now time.Time) string {
	switch d := t.Sub(now); {
	case d >= time.Second:
		return "in " + span(d)
	case d <= -time.Second:
		return span(-d) + " ago"
	}
	return "now"
}

// span says a duration in one unit, or two where that matters.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", seconds(d))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		if m := int(d.Minutes()) % 60; m > 0 {
			return fmt.Sprintf("%d h %d min", int(d.Hours()), m)
		}
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	if h := int(d.Hours()) % 24; h > 0 && d < 10*24*time.Hour {
		return fmt.Sprintf("%d days %d h", int(d.Hours())/24, h)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// seconds rounds up.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// tenths is a short duration, to 0.1 s.
func tenths(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// timeOf is a message's time, zero if it has none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// count is "1 replica", "3 replicas".
func count[N int | uint64 | uint32](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(uint64(n)) + " " + one + "s"
}

// number groups thousands.
func number(n uint64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// list is "a", "a and b", "a, b and c".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// sentence begins and ends as one.
func sentence(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return ""
	}
	return string(unicode.ToUpper(r)) + strings.TrimRight(s[size:], ".") + "."
}

// lower is a sentence's text after a colon.
func lower(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToLower(r)) + s[size:]
}

// shortKID is the beginning of a key id, which tells keys apart.
func shortKID(kid string) string {
	if utf8.RuneCountInString(kid) <= 9 {
		return kid
	}
	return string([]rune(kid)[:8]) + "…"
}

// scopeWords says what an entry of the switch stops.
func scopeWords(s *signerv1.Scope) string {
	of := ""
	if s.GetIssuer() != "" {
		of = " of " + s.GetIssuer()
	}
	switch s.GetKind() {
	case "all":
		return "everything: no issuer issues any token"
	case "issuer":
		return "the issuer " + s.GetValue() + ": it issues no token"
	}
	return "the " + s.GetKind() + " " + s.GetValue() + of
}

// visible shows what others wrote as what it is: a character that is not seen, or
// that turns others around, stands there by its number.
func visible(said string) string {
	var b strings.Builder
	for i, r := range said {
		switch _, size := utf8.DecodeRuneInString(said[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "⟨%02X⟩", said[i])
		case unicode.In(r, unicode.C, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point):
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
