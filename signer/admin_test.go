package signer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

const (
	issuerA    = "https://a.example.com"
	issuerB    = "https://b.example.com"
	thumbprint = "hkwVu1nVfLNKQVkbX6JXbZBdeiNWcXFeSn-S4OVSOsM"
)

var ctx = context.Background()

// A caller without a good token learns nothing on either face, and one with a role
// too low is refused and recorded.
func TestAdminAuthentication(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	for _, token := range []string{"", "wrong", w.tokens[signer.RoleAdmin] + "x"} {
		_, err := w.client(token).FleetStatus(ctx, &signerv1.FleetStatusRequest{})
		if status.Code(err) != codes.Unauthenticated || refusal(err).Reason != "UNAUTHENTICATED" {
			t.Errorf("gRPC with %q: %v", token, err)
		}
		stream, err := w.client(token).WaitKill(ctx, &signerv1.WaitKillRequest{Epoch: 1})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("gRPC stream with %q: %v", token, err)
		}
		for _, path := range []string{"/v1/fleet", "/v1/kill/1:wait", "/nowhere"} {
			code, h, body := w.rest(token, "GET", path, "")
			if code != http.StatusUnauthorized || h.Get("WWW-Authenticate") != `Bearer realm="admin"` || !strings.Contains(string(body), "UNAUTHENTICATED") {
				t.Errorf("REST %s with %q: %d %v %s", path, token, code, h, body)
			}
		}
	}

	for _, c := range []struct {
		role signer.Role
		may  bool
	}{{signer.RoleViewer, false}, {signer.RoleOperator, true}, {signer.RoleAdmin, true}} {
		_, err := w.client(w.tokens[c.role]).InvalidateDevice(ctx, &signerv1.InvalidateDeviceRequest{Thumbprint: thumbprint})
		if c.may != (err == nil) {
			t.Errorf("%s: %v", c.role, err)
		}
		code, _, body := w.rest(w.tokens[c.role], "POST", "/v1/devices/"+thumbprint+":invalidate", "{}")
		if c.may != (code == 200) {
			t.Errorf("REST %s: %d %s", c.role, code, body)
		}
		if !c.may {
			if status.Code(err) != codes.PermissionDenied || refusal(err).Reason != "ROLE_TOO_LOW" || refusal(err).Metadata["needs"] != "operator" {
				t.Errorf("%s: %v", c.role, err)
			}
			if code != 403 {
				t.Errorf("REST %s: %d", c.role, code)
			}
			if e := w.lastAct(); e.Action != "admin.refused" || e.Actor != "viewer@test" || e.Target != "InvalidateDevice" {
				t.Errorf("audit: %v", e)
			}
		}
	}
}

// REST is strict where the gateway by itself is not.
func TestAdminREST(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	admin := w.tokens[signer.RoleAdmin]
	const set = "/v1/audiences"
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		code                     int
		reason                   string
	}{
		{"good", "PUT", set, `{"origin":"https://p.example.com","audience":"pact:p"}`, nil, 200, ""},
		{"proto names", "GET", "/v1/devices?page_size=3", "", nil, 200, ""},
		{"JSON names", "GET", "/v1/devices?pageSize=3", "", nil, 200, ""},
		{"unknown member", "PUT", set, `{"origin":"https://p.example.com","audience":"pact:p","more":1}`, nil, 400, "INVALID_REQUEST"},
		{"repeated member", "PUT", set, `{"origin":"https://p.example.com","audience":"pact:p","audience":"pact:q"}`, nil, 400, "INVALID_REQUEST"},
		{"case", "PUT", set, `{"Origin":"https://p.example.com","audience":"pact:p"}`, nil, 400, "INVALID_REQUEST"},
		{"wrong type", "PUT", set, `{"origin":7,"audience":"pact:p"}`, nil, 400, "INVALID_REQUEST"},
		{"trailing", "PUT", set, `{"origin":"https://p.example.com","audience":"pact:p"}{}`, nil, 400, "INVALID_REQUEST"},
		{"not JSON", "PUT", set, `{`, nil, 400, "INVALID_REQUEST"},
		{"form", "PUT", set, `origin=x`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, "INVALID_REQUEST"},
		{"form as GET", "POST", "/v1/devices", `x=y`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, "INVALID_REQUEST"},
		{"too large", "PUT", set, `{"origin":"` + strings.Repeat("x", 65<<10) + `"}`, nil, 400, "INVALID_REQUEST"},
		{"query on POST", "PUT", set + "?reason=x", `{"origin":"https://p.example.com","audience":"pact:p"}`, nil, 400, "INVALID_REQUEST"},
		{"unknown query", "GET", "/v1/devices?size=3", "", nil, 400, "INVALID_REQUEST"},
		{"unknown query on a stream", "GET", "/v1/kill/1:wait?x=1", "", nil, 400, "INVALID_REQUEST"},
		{"repeated query", "GET", "/v1/devices?page_size=3&page_size=4", "", nil, 400, "INVALID_REQUEST"},
		{"bad query", "GET", "/v1/devices?page_size=x", "", nil, 400, "INVALID_REQUEST"},
		{"no route", "GET", "/v1/nowhere", "", nil, 404, ""},
		{"wrong method", "DELETE", "/v1/fleet", "", nil, 405, ""},
		{"unknown epoch", "GET", "/v1/kill/99:wait", "", nil, 404, "NOT_FOUND"},
		{"not found", "GET", "/v1/devices/" + thumbprint, "", nil, 404, "NOT_FOUND"},
		{"metadata is no header", "GET", "/v1/fleet", "", []string{"Authorization", "", "Grpc-Metadata-Authorization", "Bearer " + admin}, 401, "UNAUTHENTICATED"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, h, body := w.rest(admin, c.method, c.path, c.body, c.header...)
			if code != c.code || c.reason != "" && !strings.Contains(string(body), `"`+c.reason+`"`) {
				t.Errorf("got %d %s", code, body)
			}
			if h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" {
				t.Errorf("header %v", h)
			}
		})
	}
}

// The whole life of a kill on both faces.
func TestAdminKillAndResume(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.client(w.tokens[signer.RoleOperator])
	killed, err := c.Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "issuer", Value: issuerA}, Reason: "drill", For: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	e := killed.Entry
	if e.Scope.Kind != "issuer" || e.Scope.Value != issuerA || e.Reason != "drill" || e.Actor != "operator@test" || !killed.DurableInCustody || !slices.Equal(killed.Replicas, []string{"r1"}) {
		t.Errorf("kill: %v", killed)
	}
	if d := e.Expires.AsTime().Sub(e.Time.AsTime()); d < 59*time.Minute || d > 61*time.Minute {
		t.Errorf("expires after %v", d)
	}
	if d := killed.TokensAcceptedUntil.AsTime().Sub(e.Time.AsTime()); d < 3*time.Minute || d > 3*time.Minute+4*time.Second {
		t.Errorf("tokens are accepted for %v: want TTL + 60 s and the barrier's bound", d)
	}
	b := w.wait(e.Epoch)
	if !b.Effective || !slices.Equal(b.Confirmed, []string{"r1"}) || len(b.Silent) > 0 || b.EffectiveAt == nil {
		t.Errorf("barrier: %v", b)
	}

	// The same on REST: one JSON object a line.
	code, _, body := w.rest(w.tokens[signer.RoleViewer], "GET", "/v1/kill/"+jsonNumber(e.Epoch)+":wait", "")
	lines := bufio.NewScanner(bytes.NewReader(body))
	var last struct {
		Result struct {
			Effective bool     `json:"effective"`
			Confirmed []string `json:"confirmed"`
			Epoch     string   `json:"epoch"`
		} `json:"result"`
	}
	n := 0
	for ; lines.Scan(); n++ {
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
	}
	if code != 200 || n == 0 || !last.Result.Effective || last.Result.Epoch != jsonNumber(e.Epoch) {
		t.Errorf("REST wait: %d %s", code, body)
	}

	fleet, err := c.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
	if err != nil || len(fleet.Kills) != 1 || fleet.Epoch != e.Epoch || fleet.Issuers[0].Ready || !strings.Contains(fleet.Issuers[0].Why, e.Id) {
		t.Errorf("fleet: %v, %v", fleet, err)
	}

	// Resume: all entries of the scope, by id, or nothing.
	second, err := c.Kill(ctx, &signerv1.KillRequest{Scope: e.Scope, Reason: "again"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Resume(ctx, &signerv1.ResumeRequest{Scope: e.Scope, EntryIds: []string{e.Id}, Reason: "over"})
	if refusal(err).Reason != "ENTRIES_NOT_SHOWN" || refusal(err).Metadata["entries"] != second.Entry.Id {
		t.Errorf("partial resume: %v", err)
	}
	_, err = c.Resume(ctx, &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, EntryIds: []string{e.Id, second.Entry.Id, "nope"}, Reason: "over"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("resume of an unknown entry: %v", err)
	}
	resumed, err := c.Resume(ctx, &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, EntryIds: []string{e.Id, second.Entry.Id}, Reason: "over"})
	if err != nil || len(resumed.EntryIds) != 2 || resumed.Epoch <= second.Entry.Epoch || !resumed.DurableInCustody {
		t.Errorf("resume: %v, %v", resumed, err)
	}
	now, err := c.KillStatus(ctx, &signerv1.KillStatusRequest{})
	if err != nil || len(now.Entries) != 0 || len(now.Resumes) != 0 {
		t.Errorf("status: %v, %v", now, err)
	}
	past, err := c.KillStatus(ctx, &signerv1.KillStatusRequest{History: true})
	if err != nil || len(past.Entries) != 2 || len(past.Resumes) != 1 || past.Resumes[0].Reason != "over" {
		t.Errorf("history: %v, %v", past, err)
	}
	var acts []string
	for _, a := range w.trail() {
		acts = append(acts, a.Actor+" "+a.Action+" "+a.Reason)
	}
	if want := []string{"operator@test kill drill", "operator@test kill again", "operator@test resume over"}; !slices.Equal(acts, want) {
		t.Errorf("audit: %q, want %q", acts, want)
	}
}

func jsonNumber(n uint64) string { b, _ := json.Marshal(n); return string(b) }

func TestAdminKillRefusals(t *testing.T) {
	w := newAdminWorld(t, issuerA, issuerB)
	for name, req := range map[string]*signerv1.KillRequest{
		"no scope":             {Reason: "x"},
		"no kind":              {Reason: "x", Scope: &signerv1.Scope{}},
		"unknown kind":         {Reason: "x", Scope: &signerv1.Scope{Kind: "brand", Value: "x"}},
		"no reason":            {Scope: &signerv1.Scope{Kind: "all"}},
		"blank reason":         {Reason: " ", Scope: &signerv1.Scope{Kind: "all"}},
		"long reason":          {Reason: strings.Repeat("x", 1025), Scope: &signerv1.Scope{Kind: "all"}},
		"control character":    {Reason: "a\x1b[2Jb", Scope: &signerv1.Scope{Kind: "all"}},
		"all with value":       {Reason: "x", Scope: &signerv1.Scope{Kind: "all", Value: "x"}},
		"issuer without":       {Reason: "x", Scope: &signerv1.Scope{Kind: "issuer"}},
		"unknown issuer":       {Reason: "x", Scope: &signerv1.Scope{Kind: "issuer", Value: "https://c.example.com"}},
		"audience, which":      {Reason: "x", Scope: &signerv1.Scope{Kind: "audience", Value: "pact:p"}},
		"device form":          {Reason: "x", Scope: &signerv1.Scope{Kind: "device", Value: "nope", Issuer: issuerA}},
		"subject empty":        {Reason: "x", Scope: &signerv1.Scope{Kind: "subject", Issuer: issuerA}},
		"withdraw a device":    {Reason: "x", WithdrawKeys: true, Scope: &signerv1.Scope{Kind: "device", Value: thumbprint, Issuer: issuerA}},
		"negative duration":    {Reason: "x", For: durationpb.New(-time.Second), Scope: &signerv1.Scope{Kind: "all"}},
		"duration of a cosmos": {Reason: "x", For: &durationpb.Duration{Seconds: 1 << 50}, Scope: &signerv1.Scope{Kind: "all"}},
	} {
		if _, err := w.admin().Kill(ctx, req); status.Code(err) != codes.InvalidArgument || refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := w.trail(); len(got) != 0 {
		t.Errorf("a refused kill is in the audit log: %v", got)
	}
	if _, err := w.admin().Resume(ctx, &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "x"}); refusal(err).Reason != "INVALID_REQUEST" {
		t.Errorf("resume of nothing: %v", err)
	}
	// A target that nobody knows is killed all the same, and said.
	resp, err := w.admin().Kill(ctx, &signerv1.KillRequest{Reason: "x", Scope: &signerv1.Scope{Kind: "audience", Value: "pact:typo", Issuer: issuerB}})
	if err != nil || len(resp.Notes) != 1 || !strings.Contains(resp.Notes[0], "pact:typo") {
		t.Errorf("unknown audience: %v, %v", resp, err)
	}
}

// What was thrown for an issuer that is not configured any more is lifted by its scope,
// and no other scope lifts it.
func TestAdminResumeOfFormerIssuer(t *testing.T) {
	w := newAdminWorld(t, issuerA, issuerB)
	const former = "https://former.example.com"
	for _, scope := range []killswitch.Scope{{Kind: killswitch.Issuer, Issuer: former}, {Kind: killswitch.Audience, Issuer: former, Value: "pact:p"}} {
		e, _, err := w.store.Kill(ctx, killswitch.Entry{ID: string(scope.Kind), Scope: scope, Reason: "x", Actor: "ops"}, 0, audit.Entry{Action: "kill"})
		if err != nil {
			t.Fatal(err)
		}
		asked := &signerv1.Scope{Kind: string(scope.Kind), Value: scope.Value, Issuer: former}
		mistyped := &signerv1.Scope{Kind: string(scope.Kind), Value: scope.Value, Issuer: "https://fromer.example.com"}
		if scope.Kind == killswitch.Issuer {
			asked, mistyped = &signerv1.Scope{Kind: "issuer", Value: former}, &signerv1.Scope{Kind: "issuer", Value: "https://fromer.example.com"}
		}
		req := &signerv1.ResumeRequest{Scope: mistyped, EntryIds: []string{e.ID}, Reason: "retired"}
		if _, err := w.admin().Resume(ctx, req); status.Code(err) != codes.NotFound {
			t.Errorf("%s, mistyped: %v", scope.Kind, err)
		}
		req.Scope = asked
		if resp, err := w.admin().Resume(ctx, req); err != nil || len(resp.EntryIds) != 1 {
			t.Errorf("%s: %v, %v", scope.Kind, resp, err)
		}
	}
	long := &signerv1.Scope{Kind: "issuer", Value: "https://" + strings.Repeat("x", 600)}
	if _, err := w.admin().Resume(ctx, &signerv1.ResumeRequest{Scope: long, EntryIds: []string{"x"}, Reason: "x"}); refusal(err).Reason != "INVALID_REQUEST" {
		t.Errorf("a long issuer: %v", err)
	}
}

// A kill with withdraw_keys revokes what signs and publishes fresh keys.
func TestAdminWithdrawKeys(t *testing.T) {
	w := newAdminWorld(t, issuerA, issuerB)
	before, err := w.admin().ListKeys(ctx, &signerv1.ListKeysRequest{})
	if err != nil || len(before.Keys) != 2 {
		t.Fatalf("keys: %v, %v", before, err)
	}
	resp, err := w.admin().Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "leak", WithdrawKeys: true})
	if err != nil || len(resp.NotWithdrawn) != 0 || len(resp.Notes) != 2 {
		t.Fatalf("kill: %v, %v", resp, err)
	}
	after, err := w.admin().ListKeys(ctx, &signerv1.ListKeysRequest{})
	if err != nil || len(after.Keys) != 4 {
		t.Fatalf("keys: %v, %v", after, err)
	}
	for _, k := range after.Keys {
		old := slices.ContainsFunc(before.Keys, func(b *signerv1.Key) bool { return b.Kid == k.Kid })
		if old != (k.State == "revoked") || old != (k.RevokedAt != nil) {
			t.Errorf("key %v", k)
		}
	}
	for _, i := range []string{issuerA, issuerB} {
		set, err := w.admin().GetKeySet(ctx, &signerv1.GetKeySetRequest{Issuer: i})
		if err != nil || set.JwksUri != i+"/.well-known/jwks.json" {
			t.Fatal(err)
		}
		for _, k := range after.Keys {
			if in := strings.Contains(set.Jwks, k.Kid); in != (k.Issuer == i && k.State != "revoked") {
				t.Errorf("key set of %s: %s in it: %v", i, k.Kid, in)
			}
		}
	}
	var acts []string
	for _, a := range w.trail() {
		acts = append(acts, a.Action+" "+a.Issuer+" "+a.Reason)
		if a.Action == "keys.withdraw" && a.Detail["revoked"] == "" {
			t.Errorf("the entry does not name the revoked keys: %v", a)
		}
	}
	if want := []string{"kill  leak", "keys.withdraw " + issuerA + " leak", "keys.withdraw " + issuerB + " leak"}; !slices.Equal(acts, want) {
		t.Errorf("audit: %q", acts)
	}
}

func TestAdminRotate(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	first, err := c.ListKeys(ctx, &signerv1.ListKeysRequest{})
	if err != nil || len(first.Keys) != 1 || first.Keys[0].State != "signing" || first.Keys[0].Algorithm != "ES256" || first.Keys[0].Replicas != 1 {
		t.Fatalf("keys: %v, %v", first, err)
	}
	kid := first.Keys[0].Kid

	plan, err := c.RotateKey(ctx, &signerv1.RotateKeyRequest{Algorithm: "RS256", DryRun: true})
	if err != nil || plan.Kid != "" || plan.Algorithm != "RS256" || len(plan.Timeline) == 0 || len(plan.Notes) == 0 || plan.Issuer != issuerA {
		t.Errorf("dry run: %v, %v", plan, err)
	}
	if got := w.trail(); len(got) != 0 {
		t.Errorf("a dry run is in the audit log: %v", got)
	}
	done, err := c.RotateKey(ctx, &signerv1.RotateKeyRequest{Algorithm: "RS256", Reason: "yearly"})
	if err != nil || done.Kid == "" || done.Revision <= plan.Revision {
		t.Fatalf("rotate: %v, %v", done, err)
	}
	if e := w.lastAct(); e.Action != "rotate" || e.Target != done.Kid || e.Reason != "yearly" || e.Actor != "admin@test" || e.Detail["algorithm"] != "RS256" {
		t.Errorf("audit: %v", e)
	}
	_, err = c.RotateKey(ctx, &signerv1.RotateKeyRequest{})
	at, parseErr := time.Parse(time.RFC3339, refusal(err).Metadata["at"])
	if status.Code(err) != codes.FailedPrecondition || refusal(err).Reason != "TOO_EARLY" || parseErr != nil || time.Until(at) < 50*time.Minute {
		t.Errorf("second rotate: %v", err)
	}

	for name, req := range map[string]*signerv1.RotateKeyRequest{
		"algorithm":            {Algorithm: "EdDSA"},
		"emergency of nothing": {Emergency: true},
		"kid, no emergency":    {CompromisedKid: kid},
		"reason":               {Reason: strings.Repeat("x", 1025)},
		"issuer":               {Issuer: issuerB},
	} {
		if _, err := c.RotateKey(ctx, req); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.RotateKey(ctx, &signerv1.RotateKeyRequest{Emergency: true, CompromisedKid: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown kid: %v", err)
	}
	if _, err := c.RotateKey(ctx, &signerv1.RotateKeyRequest{Emergency: true, CompromisedKid: kid, Reason: "leak"}); err != nil {
		t.Fatalf("emergency: %v", err)
	}
	if e := w.lastAct(); e.Detail["revoked"] != kid || e.Detail["emergency"] != "true" {
		t.Errorf("audit: %v", e)
	}
	if _, err := c.RotateKey(ctx, &signerv1.RotateKeyRequest{Emergency: true, CompromisedKid: kid}); refusal(err).Reason != "ALREADY_REVOKED" {
		t.Errorf("again: %v", err)
	}
}

func TestAdminDevices(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	if _, err := c.GetDevice(ctx, &signerv1.GetDeviceRequest{Thumbprint: thumbprint}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown device: %v", err)
	}
	for _, bad := range []string{"", "short", thumbprint + "A", thumbprint[:42] + "=", thumbprint[:42] + "N", strings.Repeat("+", 43)} {
		if _, err := c.InvalidateDevice(ctx, &signerv1.InvalidateDeviceRequest{Thumbprint: bad}); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("thumbprint %q: %v", bad, err)
		}
	}
	// A key that never enrolled is ended too, once: the first reason stays.
	for _, reason := range []string{"lost phone", "found again"} {
		d, err := c.InvalidateDevice(ctx, &signerv1.InvalidateDeviceRequest{Thumbprint: thumbprint, Reason: reason})
		if err != nil || d.State != "invalidated" || d.Reason != "lost phone" || d.EnrolledAt != nil || d.InvalidatedAt == nil {
			t.Errorf("invalidate: %v, %v", d, err)
		}
		if e := w.lastAct(); e.Action != "device.invalidate" || e.Target != thumbprint || e.Reason != reason || e.Issuer != issuerA {
			t.Errorf("audit: %v", e)
		}
	}
	d, err := c.GetDevice(ctx, &signerv1.GetDeviceRequest{Thumbprint: thumbprint})
	if err != nil || d.State != "invalidated" {
		t.Errorf("get: %v, %v", d, err)
	}
	list, err := c.ListDevices(ctx, &signerv1.ListDevicesRequest{})
	if err != nil || len(list.Devices) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestAdminAudiences(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	x, err := c.SetAudience(ctx, &signerv1.SetAudienceRequest{Origin: "https://P.example.com/", Audience: "pact:p", Reason: "new"})
	if err != nil || x.Origin != "https://p.example.com" || x.SetBy != "admin@test" || x.SetAt == nil {
		t.Fatalf("set: %v, %v", x, err)
	}
	if e := w.lastAct(); e.Action != "audience.set" || e.Target != x.Origin || e.Detail["audience"] != "pact:p" || e.Reason != "new" {
		t.Errorf("audit: %v", e)
	}
	_, err = c.SetAudience(ctx, &signerv1.SetAudienceRequest{Origin: "https://q.example.com", Audience: "pact:p"})
	if status.Code(err) != codes.AlreadyExists || refusal(err).Metadata["origin"] != x.Origin {
		t.Errorf("one audience for two origins: %v", err)
	}
	if x, err = c.SetAudience(ctx, &signerv1.SetAudienceRequest{Origin: "https://p.example.com", Audience: "pact:new"}); err != nil || x.Audience != "pact:new" {
		t.Errorf("set again: %v, %v", x, err)
	}
	for _, req := range []*signerv1.SetAudienceRequest{
		{Origin: "https://p.example.com"}, {Audience: "a"}, {Origin: "http://p.example.com", Audience: "a"},
		{Origin: "https://p.example.com", Audience: strings.Repeat("x", 257)}, {Origin: "https://p.example.com", Audience: "a\nb"},
	} {
		if _, err := c.SetAudience(ctx, req); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%v: %v", req, err)
		}
	}
	list, err := c.ListAudiences(ctx, &signerv1.ListAudiencesRequest{})
	if err != nil || len(list.Audiences) != 1 || list.Audiences[0].Audience != "pact:new" {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := c.RemoveAudience(ctx, &signerv1.RemoveAudienceRequest{Origin: "https://p.example.com", Reason: "closed"}); err != nil {
		t.Errorf("remove: %v", err)
	}
	if e := w.lastAct(); e.Action != "audience.remove" || e.Reason != "closed" {
		t.Errorf("audit: %v", e)
	}
	if _, err := c.RemoveAudience(ctx, &signerv1.RemoveAudienceRequest{Origin: "https://p.example.com"}); status.Code(err) != codes.NotFound {
		t.Errorf("remove again: %v", err)
	}
}

// Where a deployment has several issuers, a request has to name one.
func TestAdminSeveralIssuers(t *testing.T) {
	w := newAdminWorld(t, issuerA, issuerB)
	_, err := w.admin().ListDevices(ctx, &signerv1.ListDevicesRequest{})
	if refusal(err).Reason != "INVALID_REQUEST" || !strings.Contains(err.Error(), issuerA) || !strings.Contains(err.Error(), issuerB) {
		t.Errorf("no issuer: %v", err)
	}
	if _, err := w.admin().ListDevices(ctx, &signerv1.ListDevicesRequest{Issuer: issuerB}); err != nil {
		t.Errorf("issuer named: %v", err)
	}
	fleet, err := w.admin().FleetStatus(ctx, &signerv1.FleetStatusRequest{})
	if err != nil || len(fleet.Issuers) != 2 || len(fleet.Replicas) != 1 || fleet.Version != "test" || fleet.Replica != "r1" || fleet.Time == nil {
		t.Fatalf("fleet: %v, %v", fleet, err)
	}
	for _, i := range fleet.Issuers {
		if !i.Ready || i.Why != "" || i.SigningKid == "" || i.Algorithm != "ES256" || i.Enrolment != "token" || i.TokenTtl.AsDuration() != 2*time.Minute || i.SignerUrl != i.Issuer {
			t.Errorf("issuer: %v", i)
		}
	}
}

// The registry never grows beyond what clients can read in a status response.
func TestAdminRegistryFull(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	for n := range 200 {
		audience := strings.Repeat("x", 240) + jsonNumber(uint64(n))
		_, err := w.admin().SetAudience(ctx, &signerv1.SetAudienceRequest{Origin: "https://p" + jsonNumber(uint64(n)) + ".example.com", Audience: audience})
		if err == nil {
			continue
		}
		if status.Code(err) != codes.FailedPrecondition || refusal(err).Reason != "REGISTRY_FULL" || n < 90 {
			t.Errorf("audience %d: %v", n, err)
		}
		return
	}
	t.Error("200 long audiences were taken")
}

// A store that does not answer is 503 to the caller, with its cause only in the log.
func TestAdminStoreAway(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	w.store.Close()
	_, err := w.admin().ListDevices(ctx, &signerv1.ListDevicesRequest{})
	if status.Code(err) != codes.Unavailable || refusal(err).Reason != "UNAVAILABLE" {
		t.Errorf("gRPC: %v", err)
	}
	if code, _, body := w.rest(w.tokens[signer.RoleViewer], "GET", "/v1/devices", ""); code != 503 {
		t.Errorf("REST: %d %s", code, body)
	}
	if !strings.Contains(w.log.String(), "admin call failed") {
		t.Error("the cause is not in the log")
	}
}
