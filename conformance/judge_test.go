package conformance

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// edited is a JSON object with some members changed; nil takes one away.
func edited(t testing.TB, object string, edits map[string]any) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(object), &all); err != nil {
		t.Fatal(err)
	}
	for name, value := range edits {
		set(all, name, value)
	}
	body, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// judged tells when a judgement is not the one that is wanted: "" is none.
func judged(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want %q", name, err, want)
	}
}

type edit struct {
	name  string
	edits map[string]any
	want  string // in the error; none if empty
}

func one(name string, value any, want string) edit {
	return edit{fmt.Sprintf("%s=%v", name, value), map[string]any{name: value}, want}
}

var goodCard = &card{
	interfaceURL: "https://p.example/a2a/x", deviceURL: "https://p.example/a2a/x/oauth/device",
	tokenURL: "https://p.example/a2a/x/oauth/token", metadataURL: "https://p.example/a2a/x/oauth/.well-known/oauth-authorization-server",
}

func TestJudgeEndpoints(t *testing.T) {
	good := `{"issuer":"https://p.example/a2a/x/oauth","device_authorization_endpoint":"https://p.example/a2a/x/oauth/device",
		"token_endpoint":"https://p.example/a2a/x/oauth/token","jwks_uri":"https://p.example/keys","more":[1]}`
	for _, c := range []edit{
		{"good", nil, ""},
		one("issuer", nil, "issuer is missing"), one("issuer", "", "issuer is empty"), one("jwks_uri", nil, "jwks_uri is missing"),
		one("jwks_uri", 1, "jwks_uri is not a string"),
		one("device_authorization_endpoint", nil, "device_authorization_endpoint is missing"),
		one("token_endpoint", "https://p.example/a2a/x/oauth/token/", "token_endpoint is not the card's tokenUrl"),
		one("token_endpoint", "https://P.example/a2a/x/oauth/token", "token_endpoint is not the card's tokenUrl"),
		one("scopes_supported", []string{}, ""), one("scopes_supported", "a b", "scopes_supported is not an array"),
		one("grant_types_supported", []any{1}, "grant_types_supported is not an array"),
	} {
		judged(t, c.name, judgeEndpoints(edited(t, good, c.edits), goodCard), c.want)
	}
	judged(t, "twice", judgeEndpoints([]byte(`{"issuer":"a","issuer":"b"}`), goodCard), "no metadata that can be read")
	judged(t, "array", judgeEndpoints([]byte(`[]`), goodCard), "no metadata that can be read")
}

func TestJudgeIssuer(t *testing.T) {
	r := &run{}
	const at = "https://p.example/a2a/x/oauth/.well-known/oauth-authorization-server"
	for _, c := range []struct{ at, issuer, keys, want string }{
		{at, "https://p.example/a2a/x/oauth", "https://p.example/keys", ""},
		{"https://p.example/.well-known/oauth-authorization-server/a2a/x", "https://p.example/a2a/x", "https://p.example/keys", ""},
		{"https://p.example/.well-known/oauth-authorization-server", "https://p.example", "https://p.example/keys", ""},
		{"https://p.example/meta.json", "https://p.example/whoever", "https://p.example:443/keys", ""},
		{at, "https://p.example/a2a/y/oauth", "https://p.example/keys", "RFC 8414"},
		{at, "https://p.example/a2a/x/oauth/", "https://p.example/keys", "RFC 8414"},
		{at, "https://q.example/a2a/x/oauth", "https://p.example/keys", "issuer is on https://q.example"},
		{at, "https://p.example/a2a/x/oauth", "https://p.example:8443/keys", "jwks_uri is on https://p.example:8443"},
		{at, "http://p.example/a2a/x/oauth", "https://p.example/keys", "issuer is http "},
		{at, "https://p.example/a2a/x/oauth", "javascript:alert(1)", "jwks_uri"},
		{at, "", "", ""}, // metadata-endpoints says so
	} {
		judged(t, c.at+" "+c.issuer+" "+c.keys, r.judgeIssuer(c.at, &metadata{Issuer: c.issuer, Keys: c.keys}), c.want)
	}
}

func TestJudgeKeys(t *testing.T) {
	a, err := newES256()
	if err != nil {
		t.Fatal(err)
	}
	good, err := jwks.Marshal([]jwks.Key{a.public()})
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSuffix(strings.TrimPrefix(string(good), `{"keys":[`), `]}`)
	for name, c := range map[string]struct{ body, want string }{
		"good":           {string(good), ""},
		"beside another": {`{"keys":[` + key + `,{"kty":"OKP","crv":"Ed25519","kid":"e","x":"AA"}]}`, ""},
		"no kid":         {`{"keys":[` + strings.Replace(key, `"kid"`, `"x-kid"`, 1) + `]}`, ""},
		"private":        {`{"keys":[` + strings.Replace(key, `{`, `{"d":"AA",`, 1) + `]}`, "private member d"},
		"twice":          {`{"keys":[` + key + `,` + key + `]}`, "a kid that another key has"},
		"none":           {`{"keys":[]}`, "no key that may verify"},
		"symmetric":      {`{"keys":[{"kty":"oct","k":"AA"}]}`, "private member k"},
		"no keys":        {`{}`, "no member keys"},
		"no object":      {`{"keys":["a"]}`, "not a JSON object"},
		"no JSON":        {`<html>`, "invalid key set"},
	} {
		judged(t, name, judgeKeys([]byte(c.body)), c.want)
	}
}

func TestJudgeDevice(t *testing.T) {
	r := &run{}
	good := `{"device_code":"d","user_code":"u","verification_uri":"https://l.example/","verification_uri_complete":"https://l.example/?u","expires_in":600,"interval":3}`
	for _, c := range []edit{
		{"good", nil, ""},
		one("interval", nil, ""), one("verification_uri_complete", nil, ""), one("more", true, ""), one("expires_in", 600.0, ""),
		one("device_code", nil, "device_code is missing"), one("device_code", "", "device_code is empty"),
		one("user_code", 7, "user_code is not a string"), one("verification_uri", nil, "verification_uri is missing"),
		one("verification_uri", "javascript:alert(1)", "verification_uri is not"),
		one("verification_uri", "http://l.example/", "verification_uri is http"),
		one("verification_uri_complete", "https://a@l.example/", "verification_uri_complete has user-info"),
		one("verification_uri_complete", "/login", "verification_uri_complete is not absolute"),
		one("expires_in", nil, "expires_in is missing"), one("expires_in", 0, "expires_in is not more than 0"),
		one("expires_in", "600", "expires_in is not a whole number"), one("expires_in", 1.5, "expires_in is not a whole number"),
		one("expires_in", 1e300, "expires_in is not a whole number"),
		one("interval", 0, "interval is not more than 0"), one("interval", -1, "interval is not more than 0"),
		one("interval", 600, "nobody can poll in time"), one("interval", "3", "interval is not a whole number"),
	} {
		judged(t, c.name, r.judgeDevice(edited(t, good, c.edits)), c.want)
	}
}

func TestJudgeTokens(t *testing.T) {
	good := `{"token_type":"Bearer","access_token":"a","refresh_token":"r","expires_in":3600,"scope":"x y"}`
	for _, c := range []edit{
		{"good", nil, ""},
		one("refresh_token", nil, ""), one("token_type", "bearer", ""), one("expires_in", 86400, ""),
		one("token_type", "mac", "token_type is not Bearer"), one("token_type", nil, "token_type is missing"),
		one("access_token", nil, "access_token is missing"), one("access_token", map[string]any{}, "access_token is not a string"),
		one("refresh_token", "", "refresh_token is empty"), one("expires_in", nil, "expires_in is missing"),
		one("expires_in", -5, "expires_in is not more than 0"), one("scope", nil, "scope is missing"),
		one("scope", []string{"x"}, "scope is not a string"),
	} {
		a := &answer{asked: "POST token", status: 200, header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}, body: edited(t, good, c.edits)}
		judged(t, c.name, judgeTokens(a), c.want)
	}
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"charset, several directives": {http.Header{"Content-Type": {"application/json;charset=UTF-8"}, "Cache-Control": {"private, No-Store"}}, ""},
		"text":                        {http.Header{"Content-Type": {"text/html"}, "Cache-Control": {"no-store"}}, "must be application/json"},
	} {
		judged(t, name, judgeTokens(&answer{asked: "POST token", status: 200, header: c.header, body: []byte(good)}), c.want)
	}
}

func TestJudgeOAuthError(t *testing.T) {
	for name, c := range map[string]struct {
		status     int
		kind, body string
		want       string
	}{
		"good":           {400, "application/json", `{"error":"invalid_grant"}`, ""},
		"described":      {400, "application/json", `{"error":"invalid_scope","error_description":"x"}`, ""},
		"invalid_client": {401, "application/json", `{"error":"invalid_client"}`, ""},
		"client as 400":  {400, "application/json", `{"error":"invalid_client"}`, "must be 401"},
		"500":            {500, "application/json", `{"error":"invalid_grant"}`, "must be 400"},
		"html":           {400, "text/html", `<html>`, "not a JSON object"},
		"no error":       {400, "application/json", `{"message":"no"}`, "error is missing"},
		"a2a":            {400, "application/a2a+json", `{"error":{"code":400}}`, "error is not a string"},
		"as text":        {400, "text/plain", `{"error":"invalid_grant"}`, "must be application/json"},
	} {
		judged(t, name, judgeOAuthError(&answer{asked: "POST token", status: c.status, header: http.Header{"Content-Type": {c.kind}}, body: []byte(c.body)}), c.want)
	}
}

const goodClaims = `{"iss":"https://p.example/oauth","aud":"https://p.example/a2a/x","sub":"u1","client_id":"https://a.example","scope":"x y","grant_id":"g1","iat":1000,"exp":2000}`

func TestJudgeClaims(t *testing.T) {
	want := tokenWant{"https://p.example/oauth", "https://p.example/a2a/x", "https://a.example", "y x", time.Unix(1500, 0)}
	for _, c := range []edit{
		{"good", nil, ""},
		one("exp", 1<<32, ""), one("iat", 1530, ""), one("exp", 1471, ""), one("jti", "j", ""), one("scope", "x x y", ""),
		one("iss", "https://p.example/oauth/", "iss is not the metadata's issuer"), one("iss", nil, "iss is missing"),
		one("aud", []string{"https://p.example/a2a/x"}, "aud is not a string"), one("aud", "https://p.example", "aud is not the interface URL"),
		one("client_id", "https://b.example", "client_id is not the agent's issuer"), one("sub", "", "sub is empty"),
		one("grant_id", nil, "grant_id is missing"), one("scope", "x", "scope is x, and the answer says x y"),
		one("scope", "x y z", "scope is x y z"), one("iat", nil, "iat is missing"), one("iat", 1531, "iat is more than 30s ahead"),
		one("exp", 1470, "exp is past"), one("exp", "2000", "exp is not a whole number"), one("exp", nil, "exp is missing"),
	} {
		_, err := judgeClaims(edited(t, goodClaims, c.edits), want)
		judged(t, c.name, err, c.want)
	}
	got, err := judgeClaims([]byte(goodClaims), want)
	if err != nil || got != (tokenClaims{"u1", "g1", "x y", 2000}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := judgeClaims([]byte(`"x"`), want); err == nil {
		t.Error("a string passes")
	}
}

// TestVerify: keys of both kinds verify, with kid and without, and nothing else does.
func TestVerify(t *testing.T) {
	es, err := newES256()
	if err != nil {
		t.Fatal(err)
	}
	key, err := newRSA()
	if err != nil {
		t.Fatal(err)
	}
	rs, err := newSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{}
	r.keys = &jwks.Set{Keys: []jwks.Key{es.public(), rs.public()}}
	r.keysErr = notRun("no more keys")
	compact := func(changes ...change) string {
		made := &token{header: map[string]any{}, claims: map[string]any{"a": 1}}
		for _, c := range changes {
			c(made)
		}
		return made.compact()
	}
	for name, c := range map[string]struct{ token, want string }{
		"ES256":         {compact(signedBy(es)), ""},
		"RS256":         {compact(signedBy(rs)), ""},
		"no kid":        {compact(signedBy(rs), header("kid", nil)), ""},
		"any typ":       {compact(signedBy(es), header("typ", "x")), ""},
		"tampered":      {tampered(compact(signedBy(es))), "signature"},
		"another's":     {compact(signedBy(es), signature(rs.sign)), "signature"},
		"unknown kid":   {compact(signedBy(es), header("kid", "x")), "no more keys"},
		"other alg":     {compact(signedBy(es), header("alg", "ES384")), "alg"},
		"none":          {compact(signedBy(es), header("alg", "none")), "alg"},
		"no token":      {"x", "three parts"},
		"not even text": {"a.b.c", "header"},
	} {
		_, err := r.verify(t.Context(), c.token)
		judged(t, name, err, c.want)
	}
}

func TestForgeries(t *testing.T) {
	es, err := newES256()
	if err != nil {
		t.Fatal(err)
	}
	good := &token{header: map[string]any{"typ": "at+jwt"}, claims: map[string]any{"sub": "u", "exp": 5}}
	signedBy(es)(good)
	forged, err := forgeries(good.compact())
	if err != nil || len(forged) < 4 {
		t.Fatalf("%d, %v", len(forged), err)
	}
	for _, f := range forged {
		parsed, err := jwks.ParseCompact(f.token, jose.ES256)
		if err != nil {
			continue
		}
		if _, err := parsed.Verify(es.key.Public()); err == nil {
			t.Errorf("%s: it is a good token", f.what)
		}
		if parsed.KeyID != es.kid {
			t.Errorf("%s: it has another kid", f.what)
		}
	}
	for _, bad := range []string{"", "a.b", "a.b.c", "e30.e30"} {
		if _, err := forgeries(bad); !errors.Is(err, errNotRun) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestJudgeBoxes(t *testing.T) {
	boxes := func(ids ...string) (b []person.Box) {
		for _, id := range ids {
			b = append(b, person.Box{ID: id})
		}
		return b
	}
	judged(t, "good", judgeBoxes(boxes("b", "a"), []string{"a", "b"}), "")
	judged(t, "less", judgeBoxes(boxes("a"), []string{"a", "b"}), "no box for b")
	judged(t, "more", judgeBoxes(boxes("a", "b", "c"), []string{"a", "b"}), "a box for c")
}

const goodTask = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_AUTH_REQUIRED","message":{"messageId":"m","contextId":"c","role":"ROLE_AGENT","parts":[{"text":"x"}]}},
	"metadata":{"pact.missingScopes":["a"],"pact.verificationUriComplete":"https://l.example/"}}`

func TestJudgeTask(t *testing.T) {
	for _, c := range []struct{ old, with, want string }{
		{"", "", ""},
		{`,"pact.verificationUriComplete":"https://l.example/"`, "", ""},
		{`"messageId":"m","contextId":"c"`, `"messageId":"m"`, ""},
		{`"id":"t"`, `"id":""`, "it has no id"},
		{`"contextId":"c","status"`, `"status"`, "it has no contextId"},
		{`_AUTH_REQUIRED`, `_FAILED`, `status.state is "TASK_STATE_FAILED"`},
		{`"messageId":"m",`, ``, "no messageId"},
		{`ROLE_AGENT`, `ROLE_USER`, "the role \"ROLE_USER\""},
		{`"messageId":"m","contextId":"c"`, `"messageId":"m","contextId":"d"`, "another context"},
		{`{"text":"x"}`, ``, "no parts"},
		{`["a"]`, `[]`, "pact.missingScopes is missing or empty"},
		{`["a"]`, `["a","z"]`, "pact.missingScopes has z"},
	} {
		a := &answer{status: 200, body: []byte(`{"task":` + strings.Replace(goodTask, c.old, c.with, 1) + `}`)}
		got, err := a.task()
		if err != nil {
			t.Errorf("%q: %v", c.with, err)
			continue
		}
		judged(t, c.old+" "+c.with, judgeTask(got, []string{"a", "b"}), c.want)
	}
	var none task
	judged(t, "nothing", judgeTask(none, nil), "status.message is missing")
}

func TestJudgeMissing(t *testing.T) {
	for _, c := range []struct {
		missing, lacks, has []string
		want                string
	}{
		{[]string{"a"}, []string{"a"}, []string{"b", "c"}, ""},
		{[]string{"a", "b"}, []string{"a"}, []string{"b", "c"}, "has b, which the token has"},
		{nil, []string{"a"}, []string{"b"}, "is none: must be a"},
		{[]string{"z"}, []string{"a"}, []string{"b"}, "is z: must be a"},
	} {
		judged(t, fmt.Sprint(c.missing), judgeMissing(c.missing, c.lacks, c.has), c.want)
	}
}

const goodReceiptClaims = `{"grantId":"g1","user":"u1","pa":"https://a.example","brand":"https://p.example/a2a/x","scopesUsed":["x"],"actions":[{"tool":"t","argsHash":"h"}],"ts":"2026-11-30T09:00:00.123Z"}`

func TestJudgeReceiptForm(t *testing.T) {
	for _, c := range []edit{
		{"good", nil, ""},
		one("scopesUsed", []string{}, ""), one("actions", []any{}, ""), one("ts", "2026-11-30T09:00:00+02:00", ""), one("more", 1, ""),
		one("actions", []any{map[string]any{"tool": "t"}}, ""),
		one("grantId", nil, "claims: grantId is missing"), one("user", "", "user is empty"), one("pa", 1, "pa is not a string"),
		one("brand", nil, "brand is missing"), one("scopesUsed", nil, "scopesUsed is missing"), one("scopesUsed", "x", "scopesUsed is not an array"),
		one("actions", nil, "actions is missing"), one("actions", map[string]any{}, "actions is not an array"),
		one("actions", []any{"t"}, "actions[0] is not a JSON object"), one("actions", []any{map[string]any{}}, "actions[0]: tool is missing"),
		one("actions", []any{map[string]any{"tool": "t", "argsHash": 1}}, "argsHash is not a string"),
		one("ts", nil, "ts is missing"), one("ts", "30 Nov 2026", "ts is not a date"), one("ts", 1764493200, "ts is not a string"),
	} {
		raw := `{"jws":"a.b.c","claims":` + string(edited(t, goodReceiptClaims, c.edits)) + `}`
		judged(t, c.name, judgeReceiptForm(jsontext.Value(raw)), c.want)
	}
	judged(t, "no jws", judgeReceiptForm(jsontext.Value(`{"claims":`+goodReceiptClaims+`}`)), "jws is missing")
	judged(t, "no claims", judgeReceiptForm(jsontext.Value(`{"jws":"a.b.c"}`)), "claims is missing")
	judged(t, "claims null", judgeReceiptForm(jsontext.Value(`{"jws":"a.b.c","claims":null}`)), "claims is not a JSON object")
	judged(t, "string", judgeReceiptForm(jsontext.Value(`"a.b.c"`)), "pact.receipt is not a JSON object")
}

func TestReceiptSays(t *testing.T) {
	es, err := newES256()
	if err != nil {
		t.Fatal(err)
	}
	signed := &token{header: map[string]any{}, claims: map[string]any{"user": "signed"}}
	signedBy(es)(signed)
	for name, c := range map[string]struct{ raw, user string }{
		"what is signed counts": {`{"jws":"` + signed.compact() + `","claims":{"user":"beside"}}`, "signed"},
		"else what is beside":   {`{"jws":"a.b.c","claims":{"user":"beside"}}`, "beside"},
		"no claims":             {`{"jws":"` + signed.compact() + `"}`, "signed"},
	} {
		got, err := readReceipt(jsontext.Value(c.raw)).says()
		if err != nil || got.User != c.user {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, raw := range []string{`{}`, `"x"`, `{"claims":{"user":1}}`} {
		if _, err := readReceipt(jsontext.Value(raw)).says(); !errors.Is(err, errNotRun) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestSameJSON(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":"é"}`, `{ "b" : "\u00e9", "a" : 1.0 }`, true},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`{"a":1}`, `{"a":1,"b":null}`, false},
		{`{"a":1}`, `{"a":`, false},
	} {
		if got := sameJSON(jsontext.Value(c.a), jsontext.Value(c.b)); got != c.same {
			t.Errorf("%s and %s: %t", c.a, c.b, got)
		}
	}
}

// FuzzJudges: whatever a Provider answers is judged, without a panic, and what is wrong
// is said without quoting it.
func FuzzJudges(f *testing.F) {
	const secret = "s3cr3t-v4lu3"
	for _, seed := range []string{
		goodClaims, goodTask, `{"jws":"e30.e30.AA","claims":` + goodReceiptClaims + `}`, `{"keys":[{"kty":"EC","d":"x"}]}`,
		`{"device_code":"` + secret + `","user_code":["` + secret + `"],"expires_in":1e999,"interval":-0}`,
		`{"access_token":"` + secret + `","refresh_token":{"a":"` + secret + `"},"token_type":7}`,
		`{"error":{"a":[]}}`, `{"a":1,"a":2}`, `[`, `"` + secret + `"`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := &run{}
		a := &answer{asked: "POST x", status: 200, header: http.Header{}, body: body}
		var got task
		_ = json.Unmarshal(body, &got)
		for _, err := range []error{r.judgeDevice(body), judgeTokens(a)} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error quotes a secret: %v", err)
			}
		}
		_, _ = judgeClaims(body, tokenWant{now: time.Unix(1500, 0)})
		_, _ = forgeries(string(body))
		_, _, _, _ = judgeEndpoints(body, goodCard), judgeOAuthError(a), judgeReceiptForm(body), judgeKeys(body)
		_ = judgeTask(got, nil)
		receipt := readReceipt(body)
		_, _ = receipt.says()
		_ = sameJSON(receipt.Claims, receipt.signed)
		_ = unverified(string(body))
	})
}
