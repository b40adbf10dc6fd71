package signer

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// adminReason is the ErrorInfo reason of an error.
func adminReason(t *testing.T, err error) string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.Domain != "signer.pact" {
				t.Errorf("domain %q", info.Domain)
			}
			return info.Reason
		}
	}
	t.Fatalf("no ErrorInfo in %v", err)
	return ""
}

// Every method of the service has a role, and it is the one that admin.proto
// promises in the method's comment.
func TestAdminRoles(t *testing.T) {
	proto, err := os.ReadFile("../proto/pact/signer/v1/admin.proto")
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]string{}
	for _, m := range regexp.MustCompile(`(viewer|operator|admin)\.\n\s+rpc (\w+)\(`).FindAllStringSubmatch(string(proto), -1) {
		promised[m[2]] = m[1]
	}
	methods := signerv1.File_pact_signer_v1_admin_proto.Services().ByName("AdminService").Methods()
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		if promised[name] == "" {
			t.Errorf("%s: admin.proto names no role", name)
		}
		if got := adminRoles[name].String(); got != promised[name] {
			t.Errorf("%s: has role %s, admin.proto promises %s", name, got, promised[name])
		}
	}
	if len(adminRoles) != methods.Len() {
		t.Errorf("there are roles for %d methods, and %d methods", len(adminRoles), methods.Len())
	}
}

func TestAdminTokens(t *testing.T) {
	secret, hash := NewAdminToken()
	other, otherHash := NewAdminToken()
	if secret == other || !strings.HasPrefix(secret, "pact_admin_") {
		t.Fatalf("tokens %q and %q", secret, other)
	}
	if parsed, err := ParseAdminTokenHash(FormatAdminTokenHash(hash)); err != nil || parsed != hash {
		t.Errorf("hash does not survive its text: %v", err)
	}
	for _, s := range []string{"", "sha256:", "sha256:00", FormatAdminTokenHash(hash)[7:], FormatAdminTokenHash(hash) + "00", "sha256:" + strings.Repeat("zz", 32)} {
		if _, err := ParseAdminTokenHash(s); err == nil {
			t.Errorf("hash %q was taken", s)
		}
	}

	a := &Admin{cfg: AdminConfig{Tokens: []AdminToken{{"ops", RoleOperator, hash}, {"view", RoleViewer, otherHash}}}}
	for _, c := range []struct {
		authorization []string
		want          string
	}{
		{[]string{"Bearer " + secret}, "ops"},
		{[]string{"bearer " + other}, "view"},
		{nil, ""},
		{[]string{""}, ""},
		{[]string{"Bearer "}, ""},
		{[]string{"Bearer"}, ""},
		{[]string{secret}, ""},
		{[]string{"Basic " + secret}, ""},
		{[]string{"Bearer " + secret + "x"}, ""},
		{[]string{"Bearer " + secret[:len(secret)-1]}, ""},
		{[]string{"Bearer " + secret, "Bearer " + secret}, ""},
	} {
		got, ok := a.authenticate(c.authorization)
		if got.Name != c.want || ok != (c.want != "") {
			t.Errorf("%q: got %q, %v", c.authorization, got.Name, ok)
		}
	}

	for name, tokens := range map[string][]AdminToken{
		"name":      {{"", RoleViewer, hash}},
		"name form": {{"a b", RoleViewer, hash}},
		"reserved":  {{"signer", RoleViewer, hash}},
		"role":      {{"a", 0, hash}},
		"hash":      {{"a", RoleViewer, Hash{}}},
		"twice":     {{"a", RoleViewer, hash}, {"a", RoleViewer, otherHash}},
		"same hash": {{"a", RoleViewer, hash}, {"b", RoleViewer, hash}},
	} {
		if adminCheckTokens(tokens) == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	for _, role := range []Role{RoleViewer, RoleOperator, RoleAdmin} {
		if got, err := ParseRole(role.String()); err != nil || got != role {
			t.Errorf("role %s: %v, %v", role, got, err)
		}
	}
	if _, err := ParseRole("root"); err == nil {
		t.Error("role root was taken")
	}
}

func TestAdminOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://Provider.Example.com":      "https://provider.example.com",
		"https://provider.example.com/":     "https://provider.example.com",
		"https://provider.example.com:443":  "https://provider.example.com",
		"https://provider.example.com:8443": "https://provider.example.com:8443",
		"http://127.0.0.1:8080":             "http://127.0.0.1:8080",
		"http://localhost:80":               "http://localhost",
		"http://[::1]:9":                    "http://[::1]:9",
		"https://[2001:db8::1]":             "https://[2001:db8::1]",
		"https://xn--bcher-kva.example":     "https://xn--bcher-kva.example",
	} {
		if got, err := adminOrigin("origin", in); err != nil || got != want {
			t.Errorf("%s: got %q, %v", in, got, err)
		}
	}
	for _, in := range []string{
		"", "provider.example.com", "https://", "https:provider.example.com", "ftp://provider.example.com", "http://provider.example.com",
		"https://provider.example.com/a", "https://provider.example.com?x", "https://provider.example.com?", "https://provider.example.com#",
		"https://u@provider.example.com", "https://provider.example.com:", "https://provider.example.com:0", "https://provider.example.com:99999",
		"https://bücher.example", "https://a..b", "https://a b", "https://[fe80::1%25eth0]", "https://" + strings.Repeat("a.", 300) + "b",
	} {
		if got, err := adminOrigin("origin", in); err == nil {
			t.Errorf("%s: was taken as %q", in, got)
		} else if adminReason(t, err) != "INVALID_REQUEST" || !strings.HasPrefix(status.Convert(err).Message(), "origin: ") {
			t.Errorf("%s: %v does not name the field", in, err)
		}
	}
}

func FuzzAdminOrigin(f *testing.F) {
	for _, s := range []string{"https://provider.example.com", "http://127.0.0.1:80/", "https://[::1]:443", "https://a@b", "https://a:b", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := adminOrigin("origin", s)
		if err != nil {
			return
		}
		if again, err := adminOrigin("origin", got); err != nil || again != got {
			t.Errorf("%q became %q, which becomes %q, %v", s, got, again, err)
		}
		if got != strings.ToLower(got) || strings.Count(got, "/") != 2 {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// Right after a rotation replicas that have not the newest schedule yet still serve the
// keys from before.
func TestReplicaServes(t *testing.T) {
	for _, c := range []struct {
		has       uint64
		ready     bool
		published time.Duration
		want      bool
	}{
		{7, false, 0, true}, {6, true, time.Hour, true}, {6, true, 59 * time.Second, false}, {6, false, time.Hour, false}, {0, true, time.Hour, false},
	} {
		r := killswitch.Replica{Beat: killswitch.Beat{Ready: c.ready, Revisions: map[string]uint64{"https://pa.example.com": c.has}}}
		if got := replicaServes(r, "https://pa.example.com", 7, c.published); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

func TestAdminDurationAndPage(t *testing.T) {
	if d, err := adminDuration("for", nil, time.Hour); d != 0 || err != nil {
		t.Errorf("unset: %v, %v", d, err)
	}
	if d, err := adminDuration("for", durationpb.New(time.Hour), time.Hour); d != time.Hour || err != nil {
		t.Errorf("1h: %v, %v", d, err)
	}
	for _, d := range []*durationpb.Duration{durationpb.New(-1), durationpb.New(time.Hour + 1), {Seconds: 1, Nanos: -1}, {Seconds: 1 << 60}} {
		if _, err := adminDuration("for", d, time.Hour); err == nil {
			t.Errorf("%v was taken", d)
		}
	}
	for size, want := range map[uint32]int{0: 100, 1: 1, 1000: 1000} {
		if p, err := adminPageOf(size, ""); err != nil || p.Size != want {
			t.Errorf("page size %d: %v, %v", size, p, err)
		}
	}
	if _, err := adminPageOf(1001, ""); err == nil {
		t.Error("page size 1001 was taken")
	}
	if _, err := adminPageOf(1, strings.Repeat("x", 257)); err == nil {
		t.Error("a huge page token was taken")
	}
}

// What a Provider answers becomes a result or a refusal that says what to do.
func TestProviderAnswer(t *testing.T) {
	const issuer = "https://pa.example.com"
	body := `{"platform":{"id":"p1","name":"n","issuer":"` + issuer + `","jwksUri":"u","enabled":true,"more":1}}`
	for _, status := range []int{200, 201} {
		got, err := (&providerAnswer{status: status, body: []byte(body)}).response(issuer, "e")
		if err != nil || got.PlatformId != "p1" || !got.Enabled || got.Created != (status == 201) {
			t.Errorf("%d: %v, %v", status, got, err)
		}
	}
	for _, c := range []struct {
		status int
		body   string
		code   codes.Code
		reason string
	}{
		{400, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{401, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{404, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{302, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{418, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{409, "", codes.AlreadyExists, "ALREADY_EXISTS"},
		{429, "", codes.Unavailable, "PROVIDER_UNAVAILABLE"},
		{503, "", codes.Unavailable, "PROVIDER_UNAVAILABLE"},
		{200, "", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{200, "{}", codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{200, `{"platform":{"id":"p1","issuer":"https://other.example.com"}}`, codes.FailedPrecondition, "PROVIDER_REFUSED"},
		{200, body[:20] + strings.Repeat(" ", registrationMaxBody) + body[20:], codes.FailedPrecondition, "PROVIDER_REFUSED"},
	} {
		_, err := (&providerAnswer{status: c.status, body: []byte(c.body)}).response(issuer, "e")
		if status.Code(err) != c.code || adminReason(t, err) != c.reason {
			t.Errorf("%d %.40s: got %v", c.status, c.body, err)
		}
	}
}

func FuzzProviderAnswer(f *testing.F) {
	f.Add(200, []byte(`{"platform":{"id":"p1","issuer":"https://pa.example.com"}}`))
	f.Add(201, []byte(`{"platform":null}`))
	f.Add(409, []byte("\xff"))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		got, err := (&providerAnswer{status: code, body: body}).response("https://pa.example.com", "e")
		if (err == nil) != (got != nil) || err == nil && (got.PlatformId == "" || code != http.StatusOK && code != http.StatusCreated) {
			t.Errorf("%d: %v, %v", code, got, err)
		}
	})
}

func TestAdminUnknownFields(t *testing.T) {
	req := &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}}
	if err := adminRefuseUnknown(req); err != nil {
		t.Fatal(err)
	}
	req.Scope.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01}) // field 99, varint 1
	if err := adminRefuseUnknown(req); status.Code(err) != codes.InvalidArgument {
		t.Errorf("nested: %v", err)
	}
	top := &signerv1.FleetStatusRequest{}
	top.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
	if err := adminRefuseUnknown(top); status.Code(err) != codes.InvalidArgument {
		t.Errorf("top: %v", err)
	}
}

// A cause never reaches the caller.
func TestAdminFailureHidesTheCause(t *testing.T) {
	a := &Admin{cfg: AdminConfig{Log: discardLog()}}
	err := a.failure(context.Background(), "Kill", os.ErrPermission)
	if status.Code(err) != codes.Unavailable || adminReason(t, err) != "UNAVAILABLE" || strings.Contains(err.Error(), "permission") {
		t.Errorf("got %v", err)
	}
	// But what to ask next does.
	err = a.failure(context.Background(), "Kill", fmt.Errorf("read the switch: %w", killswitch.ErrUnknownStore))
	if status.Code(err) != codes.Unavailable || adminReason(t, err) != "UNKNOWN_STORE" || !strings.Contains(err.Error(), "pactctl state status") {
		t.Errorf("a store that is lost: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.failure(ctx, "Kill", ctx.Err()); status.Code(err) != codes.Canceled {
		t.Errorf("cancelled: got %v", err)
	}
}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }
