package signer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/custody/custodytest"
	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

func TestAnswersOfRequestsNotOurs(t *testing.T) {
	if unmarshalRequest([]byte("{}"), new(signerv1.SignResponse)) == nil {
		t.Error("read something else")
	}
	if _, err := marshalResponse(new(signerv1.SignRequest)); err == nil {
		t.Error("wrote something else")
	}
}

// design.md, Order of refusals: the HTTP status comes from our reason alone.
// Whatever gRPC code comes without one is 503; none becomes a 403.
func TestOnlyOurReasonDecides(t *testing.T) {
	answer := func(err error) (int, string, http.Header) {
		w := httptest.NewRecorder()
		contractError(t.Context(), nil, nil, w, nil, err)
		return w.Code, w.Body.String(), w.Header()
	}
	for code := codes.Code(0); code < 32; code++ {
		if code == codes.OK {
			continue
		}
		got, body, header := answer(status.Error(code, "a message with secrets"))
		if got != http.StatusServiceUnavailable || body != `{"error":"unavailable"}` || header.Get("Retry-After") == "" {
			t.Errorf("%v: %d %s", code, got, body)
		}
	}
	for reason, want := range map[Reason]int{
		ReasonInvalidRequest: 400, ReasonUnauthorized: 401, ReasonDisabled: 403, ReasonAudienceNotRegistered: 422, ReasonRateLimited: 429, ReasonUnavailable: 503,
	} {
		got, body, _ := answer(fmt.Errorf("wrapped: %w", &Refusal{Reason: reason, Retry: time.Second, cause: errors.New("a secret cause")}))
		if got != want || body != fmt.Sprintf(`{"error":%q}`, strings.ToLower(string(reason))) {
			t.Errorf("%s: %d %s", reason, got, body)
		}
		st := (&Refusal{Reason: reason, cause: errors.New("a secret cause")}).GRPCStatus()
		if st.Code() == codes.PermissionDenied && reason != ReasonDisabled || strings.Contains(st.String(), "secret") {
			t.Errorf("%s: %v", reason, st)
		}
	}
	if len(answers) != 6 {
		t.Errorf("%d reasons: a new one belongs into this test", len(answers))
	}
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{&killswitch.KilledError{}, ReasonDisabled}, {killswitch.ErrNoPermit, ReasonUnavailable}, {&RefusedError{Why: "revoked"}, ReasonUnauthorized},
		{&LimitedError{RetryAfter: time.Second}, ReasonRateLimited}, {ErrFull, ReasonRateLimited}, {ErrStaleEpoch, ReasonUnavailable},
		{ErrNotFound, ReasonUnavailable}, {errors.New("anything"), ReasonUnavailable}, {errBadSignature, ReasonUnavailable},
	} {
		if got := refusalOf(fmt.Errorf("wrapped: %w", c.err)).Reason; got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

// Retry-After is whole seconds, from 1 to 5 for 503, and not always the same.
func TestRetryAfter(t *testing.T) {
	seen := map[int64]bool{}
	for range 1000 {
		seen[retrySeconds(unavailable(nil).Retry)] = true
	}
	for s := int64(1); s <= 5; s++ {
		if !seen[s] {
			t.Errorf("never %d s", s)
		}
	}
	if len(seen) != 5 {
		t.Errorf("saw %v", seen)
	}
	for d, want := range map[time.Duration]int64{0: 1, time.Millisecond: 1, time.Second: 1, time.Second + 1: 2, 90 * time.Second: 90} {
		if got := retrySeconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

func TestSecrets(t *testing.T) {
	for name, kind := range map[string]struct {
		make  func() Secret
		parse func(string) (Secret, error)
	}{
		"credential": {NewCredential, ParseCredential}, "enrolment token": {NewEnrollmentToken, ParseEnrollmentToken},
	} {
		s := kind.make()
		text := s.Reveal()
		got, err := kind.parse(text)
		if err != nil || got.Hash() != s.Hash() || kind.make().Reveal() == text || !strings.HasPrefix(text, "pact_") {
			t.Errorf("%s: %v", name, err)
		}
		for i := range text { // every mistyped character, and every cut, is found
			wrong := []byte(text)
			wrong[i] ^= 1
			if _, err := kind.parse(string(wrong)); err == nil && strings.HasPrefix(string(wrong), credentialPrefix) {
				t.Errorf("%s: a typing error at %d is accepted", name, i)
			}
			if _, err := kind.parse(text[:i]); err == nil && i > 0 && i < len(text) {
				t.Errorf("%s: cut at %d is accepted", name, i)
			} else if err != nil && strings.Contains(err.Error(), text[:max(i, 12)]) {
				t.Errorf("%s: the error holds the secret", name)
			}
		}
	}
	for text, want := range map[string]bool{
		strings.Repeat("x", 15): false, strings.Repeat("x", 16): true, strings.Repeat("é", 4096): true, strings.Repeat("x", 4097): false, "": false,
	} {
		if _, err := ParseCredential(text); (err == nil) != want {
			t.Errorf("%d characters: %v", len(text), err)
		}
	}
	if _, err := ParseEnrollmentToken(strings.Repeat("x", 40)); err == nil {
		t.Error("an enrolment token without our prefix is accepted")
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	s := NewCredential()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "in", struct{ S Secret }{s})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "in", struct{ S Secret }{s}, "pointer", &s)
	j, err := json.Marshal(map[string]any{"s": s, "p": &s})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, []Secret{s}) + fmt.Sprintf(verb, struct{ S Secret }{s})
	}
	if hidden := s.Reveal()[len(credentialPrefix):]; strings.Contains(all, hidden) || strings.Contains(all, fmt.Sprintf("%x", hidden)) {
		t.Errorf("a secret prints: %s", all)
	}
	if !strings.Contains(all, redacted) {
		t.Error("nothing was printed")
	}
}

// A subject depends on the key, the kind, the issuer and the id, each for itself.
func TestDeriveSubject(t *testing.T) {
	k := custodytest.NewMemory()
	seen := map[string]string{}
	for _, c := range [][3]string{
		{"device", "https://a.example.com", "x"}, {"credential", "https://a.example.com", "x"}, {"device", "https://b.example.com", "x"},
		{"device", "https://a.example.com", "y"}, {"device", "https://a.example.comx", ""}, {"devicehttps", "://a.example.com", "x"},
	} {
		s, err := DeriveSubject(t.Context(), k, CallerKind(c[0]), c[1], c[2])
		if err != nil || len(s) != 35 || !strings.HasPrefix(s, "pa_") || strings.Trim(s[3:], "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("%v: %q, %v", c, s, err)
		}
		if again, _ := DeriveSubject(t.Context(), k, CallerKind(c[0]), c[1], c[2]); again != s {
			t.Errorf("%v: %s, then %s", c, s, again)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%v and %s share a subject", c, other)
		}
		seen[s] = strings.Join(c[:], " ")
	}
	if s, err := DeriveSubject(t.Context(), custodytest.NewMemory(), DeviceCaller, "https://a.example.com", "x"); err != nil || seen[s] != "" {
		t.Errorf("another key gives the same subject, %v", err)
	}
}

func TestClientAddress(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1:5000", "", "192.0.2.1"},
		{"192.0.2.1:5000", "198.51.100.7", "192.0.2.1"}, // not a proxy: not believed
		{"10.0.0.1:5000", "198.51.100.7", "198.51.100.7"},
		{"10.0.0.1:5000", "203.0.113.9, 198.51.100.7", "198.51.100.7"}, // what comes first was written by anybody
		{"10.0.0.1:5000", "198.51.100.7, 10.0.0.2", "198.51.100.7"},
		{"10.0.0.1:5000", "203.0.113.9;198.51.100.7,10.2.3.4", "198.51.100.7"}, // two lines,
		{"10.0.0.1:5000", "nonsense", "10.0.0.1"},
		{"10.0.0.1:5000", "", "10.0.0.1"},
		{"10.0.0.1:5000", "10.0.0.2, 10.0.0.3", "10.0.0.2"},
		{"[fd00::1]:5000", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"},
		{"[2001:db8:1:2:ffff::1%eth0]:5000", "", "2001:db8:1:2::"},
		{"[::ffff:192.0.2.1]:5000", "", "192.0.2.1"},
		{"[::ffff:10.0.0.1]:5000", "198.51.100.7:1234", "198.51.100.7"},
	} {
		var forwarded []string
		if c.forwarded != "" {
			forwarded = strings.Split(c.forwarded, ";")
		}
		if got := clientAddress(c.peer, forwarded, trusted); got.String() != c.want {
			t.Errorf("%s, %s: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

// A registry whose status response clients could not read is refused.
func TestFitsStatus(t *testing.T) {
	list := make([]Audience, 0, 200)
	for i := range 200 {
		list = append(list, Audience{Origin: fmt.Sprintf("https://p%d.example.com", i), Audience: strings.Repeat("<", 512)})
		err := fitsStatus("https://pa.example.com", list)
		audiences := map[string]string{}
		for _, a := range list {
			audiences[a.Origin] = a.Audience
		}
		b, marshalErr := marshalResponse(&signerv1.StatusResponse{Issuer: "https://pa.example.com", Subject: strings.Repeat("s", 256), Audiences: audiences})
		if marshalErr != nil {
			t.Fatal(marshalErr)
		}
		var full *RegistryFullError
		if err == nil && len(b) > maxBody || err != nil && !errors.As(err, &full) {
			t.Fatalf("%d audiences, %d bytes: %v", i+1, len(b), err)
		}
		if err != nil {
			return
		}
	}
	t.Error("the registry never fills up")
}

// The minute in which a refusal is not written again is for one caller and reason.
func TestRefusalSampling(t *testing.T) {
	l := newRefusalLog(nil, slog.New(slog.DiscardHandler))
	now := time.Unix(1_795_000_000, 0)
	a := refusalKey{"https://a.example.com", DeviceCaller, "d", ReasonRateLimited}
	b, c := a, a
	b.id, c.reason = "e", ReasonDisabled
	for _, k := range []refusalKey{a, b, c} {
		if !l.due(k, now) || l.due(k, now.Add(59*time.Second)) || !l.due(k, now.Add(time.Minute)) {
			t.Errorf("%+v", k)
		}
	}
}

// auditOnly is a store of which only the audit log is used.
type auditOnly struct {
	Store
	entries []audit.Entry
}

func (a *auditOnly) AppendAudit(ctx context.Context, e audit.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	a.entries = append(a.entries, e)
	return nil
}

// Who hangs up is in the audit log all the same.
func TestRefusalOfWhoLeft(t *testing.T) {
	store := new(auditOnly)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	newRefusalLog(store, slog.New(slog.DiscardHandler)).add(ctx, time.Now(), "i", Authorized{ID: "d"}, opSign, disabled(nil))
	if len(store.entries) != 1 {
		t.Errorf("%d entries", len(store.entries))
	}
}
