package agent

import (
	"regexp"
	"strings"

	"golang.org/x/text/unicode/norm"
)

var sensitiveTexts = []struct {
	reason string
	re     *regexp.Regexp
}{
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY`)},
	{"an API key", regexp.MustCompile(`\b[spr]k[-_](?:[A-Za-z0-9_-]){16,}`)},
	{"an AWS access key", regexp.MustCompile(`(?:^|[^A-Za-z0-9])AKIA[0-9A-Z]{16}`)},
	{"a GitHub token", regexp.MustCompile(`gh[A-Za-z]_[A-Za-z0-9]{30,}`)},
	{"a Slack token", regexp.MustCompile(`xox[A-Za-z]-`)},
	{"a PACT token", ownToken},
	{"a password", regexp.MustCompile(`(?i)(?:password|passcode|pwd)["']?\s*[:=]\s*\S`)},
}

// digitRun is a maximal run of digits with single spaces or dashes between.
var digitRun = regexp.MustCompile(`[0-9](?:[ -]?[0-9])*`)

var plainDashes = strings.NewReplacer("\u2010", "-", "\u2011", "-", "\u2012", "-", "\u2013", "-", "\u2014", "-", "\u2015", "-", "\u2212", "-")

// Sensitive reports whether a text holds what must not be sent to a business
// (AD-10), and in a word what. Parcel and booking numbers pass: a run of 13 to
// 19 digits is a card number only if its Luhn digit is right (AD-11).
func Sensitive(text string) (reason string, found bool) {
	plain := plainDashes.Replace(norm.NFKC.String(text))
	for _, t := range []string{text, plain, Visible(plain), unmarked(plain)} {
		for _, s := range sensitiveTexts {
			if s.re.MatchString(t) {
				return s.reason, true
			}
		}
		for _, run := range digitRun.FindAllString(t, -1) {
			if cardNumber(run) {
				return "a payment card number", true
			}
		}
		if RedactText(t) != t {
			return "a token or a sign-in code", true
		}
	}
	return "", false
}

// cardNumber reports 13 to 19 digits that pass Luhn's check.
func cardNumber(run string) bool {
	sum, n := 0, 0
	for i := len(run) - 1; i >= 0; i-- {
		d := int(run[i] - '0')
		if d < 0 || d > 9 {
			continue
		}
		if n%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		n++
	}
	return n >= 13 && n <= 19 && sum%10 == 0
}
