package signer_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// contractPage is what client authors read.
func contractPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// attempt is a request to sign.
type attempt struct{ method, host, auth, body string }

// refusedWith makes an attempt into one that is refused with a status.
var refusedWith = map[int]func(w *contractWorld, a *attempt){
	400: func(_ *contractWorld, a *attempt) { a.body = "{}" },
	401: func(_ *contractWorld, a *attempt) { a.auth = "" },
	403: func(w *contractWorld, _ *attempt) { w.kill(killswitch.All, ""); w.refresh() },
	404: func(_ *contractWorld, a *attempt) { a.host = "other.example.com" },
	405: func(_ *contractWorld, a *attempt) { a.method = http.MethodGet },
	422: func(_ *contractWorld, a *attempt) { a.body = `{"audience":"https://other.example.com","nonce":"n"}` },
	429: func(w *contractWorld, a *attempt) { w.rest("/pact/sign", a.body, a.auth) }, // the limit, then, is 1
	503: func(w *contractWorld, _ *attempt) { w.store.broken.Store(true) },
}

// Each row of the page's refusals is what a server answers, on both faces, and there
// is a row for each refusal.
func TestContractPageRefusals(t *testing.T) {
	form := regexp.MustCompile("(?m)^\\| (\\d{3}) \\| (?:`(\\{.*?\\})`|text) \\| (?:`([A-Z_]+)`, `([A-Z_]+)`|none) \\| (.*) \\|$")
	rows := form.FindAllStringSubmatch(contractPage(t), -1)
	if len(rows) != len(refusedWith) {
		t.Errorf("the page has %d rows, want %d", len(rows), len(refusedWith))
	}
	for _, row := range rows {
		t.Run(row[1], func(t *testing.T) {
			want, err := strconv.Atoi(row[1])
			if err != nil || refusedWith[want] == nil {
				t.Fatalf("nothing is refused with %s", row[1])
			}
			w := newContractWorld(t, func(c *worldConfig) {
				if want == http.StatusTooManyRequests {
					c.issuers[0].CallerLimit = signer.Limit{Rate: 1, Burst: 1}
				}
			})
			a := attempt{http.MethodPost, w.address, w.credentialCaller().auth(""), goodSign}
			refusedWith[want](w, &a)
			comesBack := strings.Contains(row[5], "Retry-After")

			r := w.attempt(a)
			if r.status != want || row[2] != "" && r.body != row[2] || (r.retry > 0) != comesBack {
				t.Errorf("the page has %s, and the answer is %d %s, Retry-After %d", row[0], r.status, r.body, r.retry)
			}
			if allow := r.header.Get("Allow"); (allow == "POST") != (want == http.StatusMethodNotAllowed) {
				t.Errorf("Allow: %s", allow)
			}
			if row[3] == "" { // not a refusal of the contract's
				return
			}
			code, reason, retry := w.attemptOnGRPC(a)
			if code != row[3] || reason != row[4] || retry != comesBack {
				t.Errorf("the page has %s, and gRPC's answer is %s, %s, with RetryInfo: %t", row[0], code, reason, retry)
			}
		})
	}
}

func (w *contractWorld) attempt(a attempt) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), a.method, "http://"+w.address+"/pact/sign", strings.NewReader(a.body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Host = a.host
	req.Header.Set("Content-Type", "application/json")
	if a.auth != "" {
		req.Header.Set("Authorization", a.auth)
	}
	return w.send(req)
}

// attemptOnGRPC tells a refusal in the words of gRPC's documentation.
func (w *contractWorld) attemptOnGRPC(a attempt) (code, reason string, retry bool) {
	w.t.Helper()
	var m signerv1.SignRequest
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		w.t.Fatal(err)
	}
	ctx := w.t.Context()
	if a.auth != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a.auth)
	}
	_, err := w.grpc.Sign(ctx, &m)
	s := status.Convert(err)
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.Reason
		case *errdetails.RetryInfo:
			retry = true
		}
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(s.Code().String(), "${1}_$2")), reason, retry
}

// The page's session is one: each command has the answer that stands below it, where
// "…" is anything.
func TestContractPageSession(t *testing.T) {
	_, session, _ := strings.Cut(contractPage(t), "```console\n")
	session, _, ok := strings.Cut(session, "```")
	if !ok {
		t.Fatal("the page has no session")
	}
	w := newContractWorld(t)
	c := w.credentialCaller()
	yes := func([]signer.Audience) error { return nil }
	if err := w.store.SetAudience(t.Context(), signer.Audience{Issuer: w.issuer, Origin: providerOrigin, Audience: "aud-7f3a"}, yes, audit.Entry{Action: "test"}); err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`^call (/pact/\w+) '(.*)'$`)
	get := regexp.MustCompile(`^curl -s \$SIGNER(/\S+)$`)
	commands := 0
	for _, step := range strings.Split("\n"+session, "\n$ ")[1:] {
		command, want, _ := strings.Cut(step, "\n")
		got := ""
		switch {
		case command == "SIGNER=http://127.0.0.1:8787", command == `call() { curl -s "$SIGNER$1" -H "Authorization: Bearer $CREDENTIAL" -H 'Content-Type: application/json' -d "$2"; }`:
			continue // as this test has it
		case call.MatchString(command):
			m := call.FindStringSubmatch(command)
			got = w.rest(m[1], m[2], c.auth("")).body
		case get.MatchString(command):
			resp, err := w.http.Get("http://" + w.address + get.FindStringSubmatch(command)[1])
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			got = string(body)
		default:
			t.Fatalf("the test does not know: %s", command)
		}
		commands++
		want = strings.TrimSpace(want)
		got = strings.ReplaceAll(got, w.issuer, "http://127.0.0.1:8787")
		if !regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".+") + "$").MatchString(got) {
			t.Errorf("%s\n got %s\nwant %s", command, got, want)
		}
	}
	if commands < 5 {
		t.Errorf("only %d commands were found", commands)
	}
}

// The page's Go is this file's, and enrols and signs.
func TestContractPageAssertion(t *testing.T) {
	source, err := os.ReadFile("contract_docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, ours, _ := strings.Cut(string(source), "\n// deviceAssertion ")
	ours, _, _ = strings.Cut(ours, "\n}\n")
	if !strings.Contains(contractPage(t), "```go\n// deviceAssertion "+ours+"\n}\n```") {
		t.Error("the page's deviceAssertion is not this file's")
	}
	w := newContractWorld(t)
	d := newDevice(t)
	proof, err := deviceAssertion(d.key, w.base+"/pact/enroll")
	if err != nil {
		t.Fatal(err)
	}
	if r := w.rest("/pact/enroll", object(t, map[string]any{"publicJwk": d.jwk(t), "proof": proof}), ""); r.status != http.StatusOK {
		t.Fatalf("%+v", r)
	}
	assertion, err := deviceAssertion(d.key, w.base+"/pact/sign")
	if err != nil {
		t.Fatal(err)
	}
	if r := w.rest("/pact/sign", goodSign, "PACT-Device "+assertion); r.status != http.StatusOK {
		t.Errorf("%+v", r)
	}
}

// deviceAssertion authenticates one request to url by a device's key.
func deviceAssertion(key *ecdsa.PrivateKey, url string) (string, error) {
	public := jose.JSONWebKey{Key: &key.PublicKey}
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", err
	}
	thumbprint := base64.RawURLEncoding.EncodeToString(sum)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key},
		new(jose.SignerOptions).WithType("pact-device+jwt").WithHeader("kid", thumbprint))
	if err != nil {
		return "", err
	}
	now := time.Now().Unix()
	claims, err := json.Marshal(map[string]any{"iss": thumbprint, "aud": url, "iat": now, "exp": now + 60, "jti": rand.Text()})
	if err != nil {
		return "", err
	}
	jws, err := s.Sign(claims)
	if err != nil {
		return "", err
	}
	return jws.CompactSerialize()
}

// The page names every call and every member of the contract.
func TestContractPageMembers(t *testing.T) {
	page := contractPage(t)
	messages := signerv1.File_pact_signer_v1_signer_proto.Messages()
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			if name := fields.Get(j).JSONName(); !strings.Contains(page, "`"+name+"`") {
				t.Errorf("the page does not name %s of %s", name, messages.Get(i).Name())
			}
		}
	}
	methods := signerv1.File_pact_signer_v1_signer_proto.Services().ByName("SignerService").Methods()
	for i := range methods.Len() {
		if path := "`POST /pact/" + strings.ToLower(string(methods.Get(i).Name())) + "`"; !strings.Contains(page, path) {
			t.Errorf("the page does not name %s", path)
		}
	}
}
