package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"unicode"

	jsonv2 "github.com/go-json-experiment/json"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// Secret is a text that must not be shown: it prints, logs and marshals as
// "[redacted]". Reveal is the one way to its value.
type Secret string

// Reveal returns the secret itself, for the wire and the encrypted store only.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string               { return Redacted }
func (s Secret) GoString() string             { return Redacted }
func (s Secret) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, Redacted) }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(Redacted) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// maxDepth is the nesting that RD-3 keeps.
const maxDepth = 12

// secretKeys are RD-1's, letters and digits only. A key counts if it ends in
// one: client_secret, delegationToken.
var secretKeys = []string{
	"authorization", "xa2auserdelegation", "token", "devicecode", "usercode", "verificationuricomplete",
	"assertion", "jws", "credential", "privatejwk", "password", "secret",
}

func foldKey(key string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return -1
	}, key)
}

func secretKey(key string, inReceipt bool) bool {
	key = foldKey(key)
	if inReceipt && key == "user" {
		return true
	}
	for _, s := range secretKeys {
		if strings.HasSuffix(key, s) {
			return true
		}
	}
	return false
}

func receiptKey(key string) bool {
	key = foldKey(key)
	return strings.HasSuffix(key, "receipt") || key == "claims"
}

// Redact returns a copy of v that may be logged or shown: secrets replaced by
// key and by content, what is nested deeper than 12 replaced whole (RD-1..RD-3).
// It knows strings, errors, headers, raw JSON and what encoding/json decodes
// into; anything else goes through its JSON form.
func Redact(v any) any { return redact(v, 0, false) }

func redact(v any, depth int, inReceipt bool) any {
	if depth > maxDepth {
		return Redacted
	}
	switch v := v.(type) {
	case nil, bool, int, int32, int64, uint, uint32, uint64, float64, json.Number:
		return v
	case string:
		return RedactText(v)
	case error:
		return RedactText(v.Error())
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			if secretKey(k, inReceipt) {
				out[k] = Redacted
			} else {
				out[k] = redact(e, depth+1, inReceipt || receiptKey(k))
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = redact(e, depth+1, inReceipt)
		}
		return out
	case http.Header:
		out := make(map[string]any, len(v))
		for k, e := range v {
			if secretKey(k, false) || strings.HasSuffix(foldKey(k), "cookie") {
				out[k] = Redacted
			} else {
				out[k] = RedactText(strings.Join(e, ", "))
			}
		}
		return out
	case []byte:
		return redactJSON(v, depth, inReceipt)
	default:
		data, err := jsonv2.Marshal(v)
		if err != nil {
			return Redacted
		}
		return redactJSON(data, depth, inReceipt)
	}
}

// redactJSON redacts raw JSON, or text if it is none.
func redactJSON(data []byte, depth int, inReceipt bool) any {
	var decoded any
	if err := jsonv2.Unmarshal(data, &decoded); err != nil {
		return RedactText(string(data))
	}
	return redact(decoded, depth, inReceipt)
}

// What RD-2 finds in a text. Group 1, if any, is kept. Underscores before it are Markdown's.
var secretTexts = []*regexp.Regexp{
	regexp.MustCompile(`(\b_*(?:Bearer|BEARER|(?i:pact-device))\s+)[^\s"',;]+`),
	// In lower case "bearer" is a word of the language too: there it takes a
	// header's name before it, or something like a token after it (bearerValue).
	regexp.MustCompile(`(?i)(\bauthorization["']?\s*[:=]\s*["']?bearer\s+)[^\s"',;]+`),
	// A compact JOSE object: its first part is a JSON object in base64url.
	regexp.MustCompile(`\b_*(?:ey[JA]|ew[o0k])[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+){1,4}\.?`),
	regexp.MustCompile(`(?i)((?:device_code|user_code|refresh_token|access_token|id_token|assertion)(?:=|%(?:25)*3d))[^\s&"'<>]+`),
	regexp.MustCompile(`(?i)([?&]code=)[^\s&"'<>]+`),
	regexp.MustCompile(`\b_*(?:dc|rt|at)_[A-Za-z0-9_-]{12,}`),
	ownToken,
	// JSON in a text, by RD-1's keys.
	regexp.MustCompile(`(?i)("(?:authorization|x-a2a-user-delegation|(?:access_|refresh_|id_)?token|(?:access|refresh|id)Token|device_?code|user_?code|verification_?uri_?complete|assertion|jws|credential|privateJwk|password|secret)"\s*:\s*)"(?:[^"\\]|\\.)*"`),
}

// ownToken is a token of a running agent or of a signer, which RD-2 does not name.
var ownToken = regexp.MustCompile(`\b_*pact_(?:agent|admin|cred|enroll)_[A-Z2-7]{16,}[A-Za-z0-9]*`)

// bearerValue is a value after "bearer", of a length that tokens have.
var bearerValue = regexp.MustCompile(`(?i)\bbearer\s+[^\s"',;]{8,}`)

// redactBearer replaces the value if it is as long as no word is, or has a
// character that words have not. What ends a sentence is none of them.
func redactBearer(match string) string {
	i := strings.LastIndexFunc(match, unicode.IsSpace) + 1
	value := match[i:]
	word := strings.TrimRight(value, ".!?)")
	if len(word) >= 20 || len(word) >= 8 && strings.ContainsAny(word, "0123456789._-~+/=") {
		return match[:i] + Redacted
	}
	return match
}

var (
	pairs    = regexp.MustCompile(`^[A-Za-z0-9_.~-]+=[^\s&=]*(?:&[A-Za-z0-9_.~-]+=[^\s&=]*)*$`)
	pairCode = regexp.MustCompile(`(?i)(^code=)[^\s&]+`)
)

// RedactText returns s with everything replaced that looks like a secret
// (RD-2). A code= counts only after ? or &, or where the whole text is
// name=value pairs (AD-11). Characters that nobody sees hide none: a text in which
// they do comes back without them.
func RedactText(s string) string {
	if v := Visible(s); v != s {
		if r := redactText(v); r != v {
			return r
		}
	}
	return redactText(s)
}

func redactText(s string) string {
	for _, re := range secretTexts {
		s = re.ReplaceAllString(s, "${1}"+Redacted)
	}
	s = bearerValue.ReplaceAllStringFunc(s, redactBearer)
	if pairs.MatchString(s) {
		s = pairCode.ReplaceAllString(s, "${1}"+Redacted)
	}
	return s
}
