package sandbox

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// never: no fault is on.
func never(string) bool { return false }

func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		`{"message":{"messageId":"m-001","role":"ROLE_USER","parts":[{"text":"Where is my order?"}]}}`,
		`{"message":{"messageId":"m","contextId":"c","role":"ROLE_USER","parts":[{"text":"a","mediaType":"text/plain"},{"text":"b","metadata":{}}]}}`,
		`{"message":{"messageId":"m","taskId":"t","role":"ROLE_USER","parts":[{"data":{}}]}}`,
		`{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":" "}]}}`, `{`, `null`, `{"message":{"parts":[null]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, refusal := parseMessage(body, never)
		if refusal != nil {
			if refusal.status != 400 && refusal.status != 404 || refusal.message == "" || !utf8.ValidString(refusal.message) {
				t.Errorf("refused with %+v", refusal)
			}
			return
		}
		if m.id == "" || strings.TrimSpace(m.text) == "" || !utf8.ValidString(m.text) || !utf8.Valid(body) {
			t.Errorf("%q became %+v", body, m)
		}
	})
}

func FuzzForm(f *testing.F) {
	for _, seed := range []string{
		"client_id=http%3A%2F%2F127.0.0.1&scope=a+b", "session=x&decision=allow&scope=a&scope=b", "a=1&a=2", "%zz", "a;b", "=", "",
	} {
		f.Add("application/x-www-form-urlencoded", seed)
	}
	f.Fuzz(func(t *testing.T, contentType, body string) {
		form, refusal := parseForm(contentType, []byte(body), never)
		if refusal == nil {
			for name, values := range form {
				if len(values) != 1 {
					t.Errorf("%q: %q has %d values", body, name, len(values))
				}
			}
		} else if strings.ContainsFunc(refusal.Description, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			t.Errorf("%q: error_description %q", body, refusal.Description)
		}
		page, err := parsePageForm(contentType, []byte(body))
		if err != nil {
			if refusal == nil {
				t.Errorf("%q: good for OAuth and not for a page", body)
			}
			return
		}
		for name, values := range page {
			if name != "scope" && len(values) != 1 {
				t.Errorf("%q: %q has %d values", body, name, len(values))
			}
		}
	})
}

func FuzzRegistration(f *testing.F) {
	f.Add([]byte(`{"name":"my-pa","jwksUri":"http://127.0.0.1:4312/.well-known/jwks.json"}`))
	f.Add([]byte(`{"name":"my-pa","jwksUri":"https://pa.example/k?x#y"}`))
	f.Add([]byte(`{"name":"my-pa","jwksUri":"https://u:p@pa.example","x":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		reg, problem := parseRegistration(body)
		if problem != "" {
			return
		}
		u, err := url.Parse(reg.JWKSURI)
		if err != nil || !platformName.MatchString(reg.Name) || u.User != nil || u.Fragment != "" ||
			u.Scheme != "https" && (u.Scheme != "http" || !loopbackHost(u.Hostname())) {
			t.Errorf("%q became %+v", body, reg)
		}
	})
}

func FuzzReturnTo(f *testing.F) {
	s := &Sandbox{brandURL: "http://127.0.0.1:2", brands: []*business{{Brand: Larkline(testStart), interfaceURL: "http://127.0.0.1:1/a2a/" + LarklineID}}}
	consent := s.brands[0].consentURL()
	for _, seed := range []string{consent, consent + "?user_code=BCDF-GHJK", consent + "?user_code=bcdf", "https://x.example", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, to string) {
		_, code, ok := s.returnTarget(to)
		if ok && to != consent && to != consent+"?user_code="+code || ok && code != "" && len(code) != 9 {
			t.Errorf("%q is taken for ours", to)
		}
	})
}

// A spec that is taken says the same again.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{"receipt-bit", "receipt-bit*3", "card-name=a=b*c*2", "slow=1*1", "card-scope-text=a:b:c", "step-up-first", "x", "=*1", "status=200*0", "card-name=*1*1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		got, err := parseFault(spec)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" || !utf8.ValidString(err.Error()) && utf8.ValidString(spec) {
				t.Errorf("%q: error %q", spec, err)
			}
			return
		}
		again, err := parseFault(got.String())
		if err != nil || again != got || got.left == 0 || got.hasValue != (got.value != "") {
			t.Errorf("%q became %+v, then %+v: %v", spec, got, again, err)
		}
	})
}
