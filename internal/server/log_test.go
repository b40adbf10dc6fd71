package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/internal/config"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Whatever is done and refused: each line of the log is JSON, those of a request have
// its id, a token that is given out has one line, and no secret is in any. Metrics tell
// of nobody.
func TestLog(t *testing.T) {
	c := testConfig(t)
	is := config.DefaultIssuer()
	is.URL, is.Enrolment = fleetIssuer, "token"
	c.Issuers = []config.Issuer{is}
	var log lockedBuffer
	s, stop := traced(t, c, &log)
	content, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	admin := strings.TrimSpace(string(content))
	secrets := map[string]string{
		"the admin token": admin, "a nonce": "a-secret-nonce",
		"a wrong credential": "pact_wrong-credential", "a wrong admin token": "wrong-admin-token",
	}
	secrets["a credential"] = s.letIn(t, admin)
	secrets["an enrolment token"] = s.mustOperate(t, admin, "POST", "/v1/enrollment-tokens", map[string]any{"note": "n"})["token"].(string)

	host := strings.TrimPrefix(fleetIssuer, "http://")
	var signed []string // ids of requests that were given a token
	call := func(path, credential string, body any, want int) string {
		t.Helper()
		code, header, answer := ask(t, "POST", s.Info().Public, path, host, credential, body)
		if code != want {
			t.Fatalf("%s: %d %v, want %d", path, code, answer, want)
		}
		if token, ok := answer["token"].(string); ok {
			secrets[fmt.Sprint("token ", len(secrets))] = token
			signed = append(signed, header.Get(requestIDHeader))
		}
		return header.Get(requestIDHeader)
	}
	good := map[string]any{"audience": fleetAudience, "nonce": "a-secret-nonce"}
	call("/pact/sign", secrets["a credential"], good, 200)
	refused := []string{
		call("/pact/sign", secrets["a wrong credential"], good, 401),
		call("/pact/sign", secrets["a credential"], map[string]any{"audience": "https://nobody.example", "nonce": "a-secret-nonce"}, 422),
	}
	call("/pact/enroll", secrets["an enrolment token"], map[string]any{"publicJwk": map[string]any{}, "proof": "x"}, 400)
	call("/pact/status", secrets["a credential"], map[string]any{}, 200)
	for _, path := range []string{"/v1/fleet", "/v1/state:export"} {
		if code, _ := s.operate(t, secrets["a wrong admin token"], "GET", path, nil); code != 401 {
			t.Fatalf("%s with a wrong token: %d", path, code)
		}
	}
	s.operate(t, admin, "POST", "/v1/credentials", map[string]any{"name": "batch"}) // is there already
	rotated := s.mustOperate(t, admin, "GET", "/v1/credentials", nil)["credentials"].([]any)[0].(map[string]any)["id"].(string)
	secrets["a rotated credential"] = s.mustOperate(t, admin, "POST", "/v1/credentials/"+rotated+":rotate", map[string]any{})["credential"].(string)
	s.mustOperate(t, admin, "POST", "/v1/kill", map[string]any{"scope": map[string]any{"kind": "all"}, "reason": "test"})
	eventually(t, func() string { // the replica hears of it
		if s.guard.Live()["all"] != 1 {
			return "the kill is not in force"
		}
		return ""
	})
	refused = append(refused, call("/pact/sign", secrets["a rotated credential"], good, 403))

	conn, err := grpc.NewClient(s.Info().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secrets["a rotated credential"])
	var header metadata.MD
	if _, err := signerv1.NewSignerServiceClient(conn).Sign(ctx, &signerv1.SignRequest{Audience: fleetAudience, Nonce: "a-secret-nonce"}, grpc.Header(&header)); err == nil {
		t.Error("signed while all is killed")
	}
	refused = append(refused, header.Get(strings.ToLower(requestIDHeader))...)
	_, metrics := fetch(t, http.DefaultClient, s.Info().Ops+"/metrics")
	http.DefaultClient.CloseIdleConnections()
	stop()

	lines := make(map[string][]map[string]any) // by the request's id
	for line := range strings.Lines(log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry["time"] == nil || entry["level"] == nil || entry["msg"] == "" {
			t.Errorf("%v: %s", err, line)
		}
		for what, secret := range secrets {
			if strings.Contains(line, secret) {
				t.Errorf("%s is in the log: %s", what, line)
			}
		}
		if id, ok := entry["request_id"].(string); ok {
			lines[id] = append(lines[id], entry)
		} else if entry["msg"] == "issued" || entry["msg"] == "refused" {
			t.Errorf("without the request's id: %s", line)
		}
	}
	people := maps.Clone(secrets)
	people["an audience"], people["a credential's id"] = fleetAudience, rotated
	for what, who := range people {
		if strings.Contains(metrics, who) {
			t.Errorf("%s is in the metrics", what)
		}
	}
	issued := 0
	for id, entries := range lines {
		for _, e := range entries {
			if e["msg"] != "issued" {
				continue
			}
			issued++
			if !slices.Contains(signed, id) || e["issuer"] != fleetIssuer || e["credential"] != rotated || e["audience"] != fleetAudience ||
				e["kid"] == nil || e["jti"] == nil || e["expires"] == nil {
				t.Errorf("issued: %v", e)
			}
		}
	}
	if issued != 1 || len(signed) != 1 {
		t.Errorf("%d lines for %d tokens", issued, len(signed))
	}
	if len(refused) != 4 {
		t.Errorf("%d requests were refused with an id, want 4", len(refused))
	}
	for _, id := range refused {
		if len(lines[id]) == 0 || id == "" {
			t.Errorf("nothing in the log of the refused request %q", id)
		}
	}
}
