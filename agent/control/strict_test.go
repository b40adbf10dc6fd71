package control

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// CP-3: fields that are not known are refused, on gRPC by every method.
func TestUnknownFieldsAreRefused(t *testing.T) {
	w := newServer(t)
	conn := w.conn(w.unix)
	for _, m := range Methods() {
		req := request(t, m)
		req.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "heed me"))
		st, _ := status.FromError(callGRPC(t, conn, m, req))
		if st.Code() != codes.InvalidArgument || reasonOf(st) != codeInvalid {
			t.Errorf("%s with an unknown field: %s %q", m.Name, st.Code(), st.Message())
		}
	}
	req := &agentv1.GetAuthorizationStatusRequest{Id: "signin-1", Wait: durationpb.New(time.Second)}
	req.Wait.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	m, _ := methodOf("GetAuthorizationStatus")
	if st, _ := status.FromError(callGRPC(t, conn, m, req)); st.Code() != codes.InvalidArgument {
		t.Errorf("an unknown field within a field: %s", st.Code())
	}
}

// CP-3 on REST: what the gateway would ignore is refused, and each refusal is one of
// the contract's, whatever part of the request it is for.
func TestRESTIsStrict(t *testing.T) {
	w := newServer(t)
	post, decide, deny := "/v1/businesses:discover", "/v1/approvals/approval-1:decide", `{"decision":"deny"}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		code                     int
		reason, field            string
	}{
		{"unknown member", "POST", post, `{"domain":"a.example.com","more":1}`, nil, 400, codeInvalid, "body"},
		{"repeated member", "POST", post, `{"domain":"a.example.com","domain":"b.example.com"}`, nil, 400, codeInvalid, "body"},
		{"member by both names", "POST", post, `{"cardUrl":"https://a.example.com/c","card_url":"https://b.example.com/c"}`, nil, 400, codeInvalid, "body"},
		{"more after the value", "POST", post, `{"domain":"a.example.com"}{}`, nil, 400, codeInvalid, "body"},
		{"no object", "POST", post, `["a.example.com"]`, nil, 400, codeInvalid, "body"},
		{"no JSON", "POST", post, `domain=a.example.com`, nil, 400, codeInvalid, "body"},
		{"wrong type", "POST", post, `{"domain":1}`, nil, 400, codeInvalid, "body"},
		{"invalid UTF-8", "POST", post, "{\"domain\":\"\xff\"}", nil, 400, codeInvalid, "body"},
		{"query beside a body", "POST", post + "?refresh=true", `{"domain":"a.example.com"}`, nil, 400, codeInvalid, "query"},
		{"form", "POST", post, `domain=a`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, codeInvalid, "Content-Type"},
		{"two content types", "POST", post, `{"domain":"a"}`, []string{"Content-Type", "application/json", "Content-Type", "text/plain"}, 400, codeInvalid, "Content-Type"},
		{"too large", "POST", post, `{"domain":"` + strings.Repeat("a", maxBody) + `"}`, nil, 400, codeInvalid, "body"},
		{"unknown query", "GET", "/v1/grants?size=3", "", nil, 400, codeInvalid, "query"},
		{"repeated query", "GET", "/v1/grants?page_size=3&page_size=4", "", nil, 400, codeInvalid, "request"},
		{"query by both names", "GET", "/v1/grants?page_size=3&pageSize=4", "", nil, 400, codeInvalid, "request"},
		{"query of a wrong type", "GET", "/v1/grants?page_size=many", "", nil, 400, codeInvalid, "request"},
		{"query for what the path says", "GET", "/v1/approvals/approval-1?id=approval-2", "", nil, 400, codeInvalid, "query"},
		{"unknown query on a stream", "GET", "/v1/events?since=1", "", nil, 400, codeInvalid, "query"},
		{"body of a GET", "GET", "/v1/grants", `{}`, nil, 400, codeInvalid, "body"},
		{"body with another id than the path", "POST", "/v1/approvals/approval-1:decide", `{"id":"approval-2","decision":"deny"}`, nil, 400, codeInvalid, "id"},
		{"body with the id of the path", "POST", "/v1/approvals/approval-1:decide", `{"id":"approval-1","decision":"deny"}`, nil, 404, codeNotFound, ""},
		{"empty body", "POST", post, "", []string{"Content-Type", "application/json"}, 400, codeInvalid, "domain"},
		{"decision that is none", "POST", "/v1/approvals/approval-1:decide", `{"decision":"yes"}`, nil, 400, codeInvalid, "decision"},
		{"both names of a business", "POST", post, `{"domain":"a.example.com","cardUrl":"https://a.example.com/c"}`, nil, 400, codeInvalid, "domain"},
		{"no setting", "POST", "/v1/settings", `{}`, nil, 400, codeInvalid, "request"},
		{"no credential", "POST", "/v1/identity:setCredential", `{"signerUrl":"https://s.example.com"}`, nil, 400, codeInvalid, "credential"},
		{"deployment that is none", "POST", "/v1/identity:deviceKey", `{"signerUrl":"https://s.example.com","deployment":"mine"}`, nil, 400, codeInvalid, "deployment"},
		{"page token of another list", "GET", "/v1/grants?page_token=cmVjZWlwdHMgeA", "", nil, 400, codeInvalid, "page_token"},
		{"page token that is none", "GET", "/v1/grants?page_token=%3D%3D", "", nil, 400, codeInvalid, "page_token"},
		{"two tasks", "GET", "/v1/grants", "", []string{taskHeader, "a", taskHeader, "b"}, 400, codeInvalid, taskHeader},
		{"empty task", "GET", "/v1/grants", "", []string{taskHeader, ""}, 400, codeInvalid, taskHeader},
		{"long task", "GET", "/v1/grants", "", []string{taskHeader, strings.Repeat("a", maxName+1)}, 400, codeInvalid, taskHeader},
		{"task that no metadata can hold", "GET", "/v1/grants", "", []string{taskHeader, "caf\u00e9"}, 400, codeInvalid, taskHeader},
		{"two dialogs", "POST", decide, deny, []string{dialogHeader, "a", dialogHeader, "b"}, 400, codeInvalid, dialogHeader},
		{"empty dialog", "POST", decide, deny, []string{dialogHeader, ""}, 400, codeInvalid, dialogHeader},
		{"dialog that no metadata can hold", "POST", decide, deny, []string{dialogHeader, "caf\u00e9"}, 400, codeInvalid, dialogHeader},
		{"dialog in a task", "POST", decide, deny, []string{dialogHeader, "desk", taskHeader, "a"}, 400, codeInvalid, dialogHeader},
		{"dialog with a token", "POST", decide, deny, []string{dialogHeader, "desk", "Authorization", "Bearer " + w.secrets[ScopeAdmin]}, 400, codeInvalid, dialogHeader},
		{"dialog in which nothing is decided", "GET", "/v1/grants", "", []string{dialogHeader, "desk"}, 400, codeInvalid, dialogHeader},
		{"dialog in which it is", "POST", decide, deny, []string{dialogHeader, "desk"}, 404, codeNotFound, ""},
		{"page of a browser", "GET", "/v1/grants", "", []string{"Origin", "https://evil.example.com"}, 400, codeInvalid, "Origin"},
		{"page without an origin", "GET", "/v1/grants", "", []string{"Origin", "null"}, 400, codeInvalid, "Origin"},
		{"two tokens", "GET", "/v1/grants", "", []string{"Authorization", "Bearer x", "Authorization", "Bearer y"}, 401, codeUnauthenticated, ""},
		{"token that no metadata can hold", "GET", "/v1/grants", "", []string{"Authorization", "Bearer \u00e9"}, 401, codeUnauthenticated, ""},
		{"wrong method", "DELETE", "/v1/grants", "", nil, 405, codeNoMethod, ""},
		{"no such path", "GET", "/v2/grants", "", nil, 404, codeNoMethod, ""},
		{"no such path, by nobody", "GET", "/v2/grants", "", []string{"Authorization", "Bearer x"}, 401, codeUnauthenticated, ""},
		{"approved blindly", "POST", "/v1/approvals/approval-1:decide", `{"decision":"approve"}`, nil, 400, codeInvalid, "digest"},
		{"preference that is none", "POST", "/v1/settings", `{"preference":"x"}`, nil, 400, codeInvalid, "preference"},
		{"no preference", "POST", "/v1/settings", `{"preference":""}`, nil, 400, codeInvalid, "preference"},
		{"nothing to send", "POST", "/v1/conversations:send", `{"business":"a.example.com","message":" \n"}`, nil, 400, codeInvalid, "message"},
		{"send to nobody", "POST", "/v1/conversations:send", `{"message":"Hello?"}`, nil, 400, codeInvalid, "business"},
		{"empty permission", "POST", "/v1/conversations:send", `{"business":"a.example.com","message":"Hello?","scopes":[""]}`, nil, 400, codeInvalid, "scopes"},
		{"two permissions in one", "POST", "/v1/authorizations:start", `{"business":"a.example.com","scopes":["a b"]}`, nil, 400, codeInvalid, "scopes"},
		{"text that is none", "POST", "/v1/conversations:send", "{\"business\":\"a.example.com\",\"message\":\"gr\xfc\xdfe\"}", nil, 400, codeInvalid, "body"},
		{"permission for nothing", "POST", "/v1/authorizations:start", `{"business":"a.example.com"}`, nil, 400, codeInvalid, "scopes"},
	} {
		code, header, body := w.rest(w.unix, c.method, c.path, c.body, c.headers...)
		st := restStatus(t, body)
		reason, meta := infoOf(st)
		if code != c.code || reason != c.reason || meta["field"] != c.field {
			t.Errorf("%s: %d %s %v %s, want %d %s for %s", c.name, code, reason, meta, body, c.code, c.reason, c.field)
		}
		if header.Get("Cache-Control") != "no-store" || code == 401 && header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: headers %v", c.name, header)
		}
	}
}

// A browser's page reaches loopback by any name of its own (DNS rebinding): none is
// served there but this machine's, whatever token comes with it.
func TestLoopbackServesItsOwnNameAlone(t *testing.T) {
	w := newServer(t)
	token := "Bearer " + w.secrets[ScopeAdmin]
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:80": 200, "localhost": 200, "LOCALHOST:9": 200, "[::1]": 200, "[::1]:80": 200,
		"evil.example.com": 400, "127.0.0.1.evil.example.com": 400, "localhost.evil.example.com": 400, "10.0.0.1": 400, "0.0.0.0": 400,
		"192.168.1.1:80": 400, "localhost.": 400,
	} {
		code, _, body := w.rest(w.loopback, "GET", "/v1/grants", "", "Host", host, "Authorization", token)
		if code != want {
			t.Errorf("Host %s: %d %s, want %d", host, code, body, want)
		}
	}
	if code, _, _ := w.rest(w.loopback, "GET", "/v1/grants", "", "Authorization", token, "Origin", "http://127.0.0.1"); code != 400 {
		t.Errorf("with an Origin: %d", code)
	}
}

// requestFields calls f with each method and each field of its request.
func requestFields(t *testing.T, f func(Method, protoreflect.FieldDescriptor)) {
	t.Helper()
	for _, m := range Methods() {
		fields := descriptor(t, m.Name).Input().Fields()
		for i := range fields.Len() {
			f(m, fields.Get(i))
		}
	}
}

// CP-3: each text of a request has a limit, as agent.proto has it: one more is refused
// by its name, and so many are not.
func TestLimits(t *testing.T) {
	w := newServer(t)
	conn := w.conn(w.unix)
	want := map[string]int{ // CP-3 and the comments of agent.proto
		"id": 200, "conversation": 200, "scopes": 200, "message": 4000, "purpose": 300, "label": 120, "audience": 512,
	}
	refusedFor := func(m Method, req proto.Message) string {
		st, _ := status.FromError(callGRPC(t, conn, m, req))
		if reason, meta := infoOf(st); reason == codeInvalid {
			return meta["field"]
		}
		return ""
	}
	requestFields(t, func(m Method, f protoreflect.FieldDescriptor) {
		name := string(f.Name())
		switch {
		case f.Kind() == protoreflect.BoolKind, name == "wait":
			return
		case name == "page_size":
			for n, bad := range map[int32]bool{0: false, 1: false, 200: false, -1: true, 201: true, 1 << 30: true} {
				req := request(t, m)
				req.ProtoReflect().Set(f, protoreflect.ValueOfInt32(n))
				if got := refusedFor(m, req) == name; got != bad {
					t.Errorf("%s: page_size %d refused: %v", m.Name, n, got)
				}
			}
			return
		case f.Kind() != protoreflect.StringKind:
			t.Errorf("%s.%s: a field of kind %s has no limit", m.Name, name, f.Kind())
			return
		}
		limit, ok := limits[name]
		if !ok {
			t.Errorf("%s.%s: the field has no limit of its own", m.Name, name)
		}
		if known := want[name]; known != 0 && known != limit {
			t.Errorf("%s: the limit is %d, want %d", name, limit, known)
		}
		set := func(text string) proto.Message {
			req := request(t, m)
			if f.IsList() {
				list := req.ProtoReflect().Mutable(f).List()
				list.Append(protoreflect.ValueOfString(text))
			} else {
				req.ProtoReflect().Set(f, protoreflect.ValueOfString(text))
			}
			return req
		}
		// Characters count, not bytes.
		if got := refusedFor(m, set(strings.Repeat("é", limit+1))); got != name {
			t.Errorf("%s: %s of %d characters: refused for %q", m.Name, name, limit+1, got)
		}
		if _, word := words[name]; word || name == "page_token" || name == "domain" || name == "card_url" {
			return
		}
		longest := strings.Repeat("é", limit)
		if name == "business" { // an id or a domain, but for a card's URL
			if got := refusedFor(m, set(strings.Repeat("é", maxID+1))); got != name {
				t.Errorf("%s: business of %d characters that is no URL: refused for %q", m.Name, maxID+1, got)
			}
			longest = "https://" + strings.Repeat("e", limit-len("https://"))
		}
		if got := refusedFor(m, set(longest)); got == name {
			t.Errorf("%s: %s of %d characters is refused", m.Name, name, limit)
		}
	})
	send, _ := methodOf("SendMessage")
	for n, bad := range map[int]bool{20: false, 21: true} {
		req := request(t, send).(*agentv1.SendMessageRequest)
		for i := range n {
			req.Scopes = append(req.Scopes, fmt.Sprintf("scope:%d", i))
		}
		if got := refusedFor(send, req) == "scopes"; got != bad {
			t.Errorf("%d scopes refused: %v", n, got)
		}
	}
	wait, _ := methodOf("GetAuthorizationStatus")
	for _, c := range []struct {
		d   *durationpb.Duration
		bad bool
	}{
		{nil, false},
		{durationpb.New(0), false},
		{durationpb.New(time.Minute), false},
		{durationpb.New(time.Minute + 1), true},
		{durationpb.New(-1), true},
		{&durationpb.Duration{Seconds: 1, Nanos: -1}, true},
		{&durationpb.Duration{Seconds: 1 << 62}, true},
	} {
		if got := refusedFor(wait, &agentv1.GetAuthorizationStatusRequest{Id: "signin-1", Wait: c.d}) == "wait"; got != c.bad {
			t.Errorf("wait %v refused: %v", c.d, got)
		}
	}
}

// CP-4: nothing but a sign-in's link and code, and what a request for an identity
// shows, is a secret in any message, and those are marked for what they are. No field
// is there for a token, a device code, a credential or a signed receipt.
func TestSecretsOfMessages(t *testing.T) {
	want := map[protoreflect.FullName]bool{
		"pact.agent.v1.SignIn.link":                               true,
		"pact.agent.v1.SignIn.user_code":                          true,
		"pact.agent.v1.SetCredentialRequest.credential":           true,
		"pact.agent.v1.EnrollDeviceKeyRequest.enrollment_token":   true,
		"pact.agent.v1.Approval.token_exceeds_operation":          false, // says something of a token
		"pact.agent.v1.Approval.token_permissions":                false,
		"pact.agent.v1.Grant.token_expires":                       false,
		"pact.agent.v1.ListProvidersRequest.page_token":           false,
		"pact.agent.v1.ListProvidersResponse.next_page_token":     false,
		"pact.agent.v1.AuthorizationStatus.deadline":              false,
		"pact.agent.v1.SignIn.link_origin":                        false,
		"pact.agent.v1.Approval.authorization":                    false, // ids
		"pact.agent.v1.SignIn.authorization":                      false,
		"pact.agent.v1.Result.authorization":                      false,
		"pact.agent.v1.OperationUpdate.authorization":             false,
		"pact.agent.v1.ListAuthorizationsResponse.authorizations": false,
	}
	messages := agentv1.File_pact_agent_v1_agent_proto.Messages()
	secrets := 0
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			f := fields.Get(j)
			redacted := f.Options().(*descriptorpb.FieldOptions).GetDebugRedact()
			if redacted {
				secrets++
			}
			secret, told := want[f.FullName()]
			if told && secret != redacted || !told && redacted {
				t.Errorf("%s: debug_redact is %v", f.FullName(), redacted)
			}
			name := string(f.Name())
			if told || strings.HasSuffix(name, "page_token") || f.Kind() == protoreflect.Int32Kind || strings.HasSuffix(name, "fingerprint") {
				continue
			}
			for _, word := range []string{"token", "code", "secret", "credential", "jws", "assertion", "private", "link", "uri", "password", "authorization"} {
				if strings.Contains(name, word) {
					t.Errorf("%s: by its name it holds a secret", f.FullName())
				}
			}
		}
	}
	if secrets != 4 {
		t.Errorf("%d fields are secrets, want 4", secrets)
	}
	// Only GetSignIn answers with one, and no message holds one within it.
	for _, m := range Methods() {
		if holds(descriptor(t, m.Name).Output(), "SignIn", map[protoreflect.FullName]bool{}) != (m.Name == "GetSignIn") {
			t.Errorf("%s: what it answers with has a sign-in, or has none", m.Name)
		}
	}
}

// holds reports whether a message is, or holds within it, one of a name.
func holds(m protoreflect.MessageDescriptor, name protoreflect.Name, seen map[protoreflect.FullName]bool) bool {
	if m.Name() == name {
		return true
	}
	if seen[m.FullName()] {
		return false
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); f.Message() != nil && holds(f.Message(), name, seen) {
			return true
		}
	}
	return false
}

// CP-3, CP-4: no request panics, or gets another answer than one of the contract's;
// and one that is refused says nothing of what was in it.
func FuzzREST(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"id":"approval-1","decision":"approve"}`, `{"business":"x","message":"y","scopes":["a"],"confirmed":true}`,
		`{"signerUrl":"http://127.0.0.1:1","credential":"pact-credential-0123456789"}`, `{"a":null}`, `[`, "\x00", `{"domain":"\ud800"}`,
		`{"enabled":null,"preference":"disabled"}`, `{"origin":"https://x","audience":"y","label":"z"}`,
	} {
		for i := range methods {
			f.Add(uint(i), body, "")
		}
		f.Add(uint(10), body, "page_size=1&page_token=x")
	}
	w := newFuzzServer(f)
	f.Fuzz(func(t *testing.T, n uint, body, query string) {
		m := methods[n%uint(len(methods))]
		if m.Name == "WatchEvents" {
			return
		}
		verb, path, _ := strings.Cut(m.REST, " ")
		path = strings.NewReplacer("{id}", "some-id", "{conversation}", "some-id").Replace(path)
		r := httptest.NewRequestWithContext(t.Context(), verb, "http://127.0.0.1"+path, strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set("Content-Type", "application/json")
		if verb == "GET" {
			r.Body, r.ContentLength = http.NoBody, 0
		}
		rec := httptest.NewRecorder()
		w.server.Handler(true).ServeHTTP(rec, r)
		switch rec.Code {
		case 200, 400, 404:
		default:
			t.Fatalf("%s %s: %d %s", m.Name, body, rec.Code, rec.Body)
		}
		if !utf8.Valid(rec.Body.Bytes()) {
			t.Errorf("%s: the answer is no UTF-8", m.Name)
		}
	})
}

// AD-3: on the owner's socket, nothing that comes with an Authorization header is the
// owner's, and nothing that names a task acts outside one.
func FuzzIdentify(f *testing.F) {
	for _, s := range []string{"", "Bearer", "Bearer ", "bearer x", "Basic x", "Bearer " + TokenPrefix, "\x00", "Bearer  " + TokenPrefix + "A"} {
		f.Add(s, "")
		f.Add(s, "trip")
		f.Add(s, "é\x00")
	}
	w := newFuzzServer(f)
	f.Fuzz(func(t *testing.T, authorization, task string) {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/v1/status", nil)
		r.Header["Authorization"] = []string{authorization}
		if c, err := w.server.identify(r, true); err == nil || c.scope != "" {
			t.Errorf("Authorization %q: %+v, %v", authorization, c, err)
		}
		delete(r.Header, "Authorization")
		r.Header[taskHeader] = []string{task}
		if c, err := w.server.identify(r, true); err == nil && (!c.inTask || c.confirms()) {
			t.Errorf("Pact-Task %q: %+v", task, c)
		} else if err == nil && len("assistant:"+c.actor+":"+c.task) > maxID {
			t.Errorf("Pact-Task %q: the task's id is too long", task)
		}
		if c, err := w.server.identify(r, false); err == nil {
			t.Errorf("on loopback without a token: %+v", c)
		}
	})
}

// A name comes through a header as it is; what is not written as headerName does stands for
// itself, or is none.
func TestNamesInHeaders(t *testing.T) {
	for _, name := range []string{"desk", "a b:c/d", "100%", "%41", "\u65e5\u672c\u8a9e", "caf\u00e9 % \U0001f916"} {
		written := headerName(name)
		if got, err := readName(taskHeader, written); err != nil || got != name {
			t.Errorf("%q: written %q, read %q, %v", name, written, got, err)
		}
	}
	for given, want := range map[string]string{"50% off": "50% off", "%e5%8a%a9": "\u52a9", "%": "%", "%00": "", "%FF": "", "%E2%80%AE": "", "caf\u00e9": "", "a\tb": ""} {
		if got, err := readName(taskHeader, given); err == nil != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %q", given, got, err, want)
		}
	}
}

// A refusal over gRPC and over REST is the same status, with one ErrorInfo.
func TestRefusalsHaveOneErrorInfo(t *testing.T) {
	w := newServer(t)
	_, _, body := w.rest(w.unix, "GET", "/v1/approvals/approval-1", "")
	st := status.New(codes.OK, "").Proto()
	if err := protojson.Unmarshal([]byte(body), st); err != nil {
		t.Fatal(err)
	}
	if len(st.Details) != 1 {
		t.Errorf("details %v", st.Details)
	}
	if reason, _ := infoOf(status.FromProto(st)); reason != codeNotFound {
		t.Errorf("reason %s", reason)
	}
}

// CP-3: what a request cannot do without is asked for before anything is done, by both
// faces alike; and a call of no method says so.
func TestRequiredFields(t *testing.T) {
	w := newServer(t)
	conn := w.conn(w.unix)
	for _, m := range Methods() {
		in := descriptor(t, m.Name).Input()
		for _, field := range required[in.Name()] {
			req := request(t, m)
			req.ProtoReflect().Clear(in.Fields().ByName(field))
			st := status.Convert(callGRPC(t, conn, m, req))
			if reason, meta := infoOf(st); st.Code() != codes.InvalidArgument || reason != codeInvalid || meta["field"] != string(field) {
				t.Errorf("%s without %s: %s %q", m.Name, field, st.Code(), st.Message())
			}
		}
		if in.Fields().ByName("id") != nil && len(required[in.Name()]) == 0 {
			t.Errorf("%s goes without an id", m.Name)
		}
	}
	for _, full := range []string{"/pact.agent.v1.AgentService/GetEverything", "/pact.agent.v2.AgentService/GetStatus"} {
		err := conn.Invoke(t.Context(), full, &agentv1.GetStatusRequest{}, &agentv1.Status{})
		if st := status.Convert(err); st.Code() != codes.Unimplemented || reasonOf(st) != codeNoMethod {
			t.Errorf("%s: %v", full, err)
		}
	}
}

// bytesCodec sends what it is given.
type bytesCodec struct{}

func (bytesCodec) Name() string                       { return "proto" }
func (bytesCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { return nil }

// CP-3 on gRPC: what is no request, or says something twice, is refused as all else is.
func TestWireIsStrict(t *testing.T) {
	w := newServer(t)
	conn := w.conn(w.unix)
	text := func(num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), s)
	}
	wait := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{8, 1})
	send := append(text(1, "a.example.com"), text(2, "Hello?")...)
	for name, c := range map[string]struct {
		method string
		body   []byte
		field  string
	}{
		"no message of protobuf":      {"GetConversation", []byte{0xff}, "body"},
		"a field that ends early":     {"GetConversation", []byte{10, 5, 'a'}, "body"},
		"a field of another type":     {"GetConversation", []byte{8, 1}, "GetConversationRequest"},
		"a field within one":          {"GetAuthorizationStatus", append(text(1, "signin-1"), 18, 1, 0xff), "body"},
		"an id twice":                 {"GetConversation", append(text(1, "c-1"), text(1, "c-2")...), "id"},
		"a message in two":            {"GetAuthorizationStatus", append(append(text(1, "signin-1"), wait...), wait...), "wait"},
		"a field twice within one":    {"GetAuthorizationStatus", append(text(1, "signin-1"), 18, 4, 8, 1, 8, 5), "wait.seconds"},
		"a text that is none":         {"SendMessage", append(text(1, "a.example.com"), text(2, "gr\xfc\xdfe")...), "message"},
		"a text of a list":            {"SendMessage", append(send, text(4, "\xff")...), "scopes"},
		"an id that is no text":       {"GetReceipt", text(1, "r-\xff"), "id"},
		"larger than any":             {"SendMessage", append(send, text(4, strings.Repeat("x", maxBody))...), "body"},
		"a number beyond its bits":    {"ListBusinesses", []byte{8, 0x81, 0x80, 0x80, 0x80, 0x10}, "page_size"},
		"a number below them":         {"ListBusinesses", protowire.AppendVarint([]byte{8}, uint64(1)<<63), "page_size"},
		"a negative number":           {"ListBusinesses", protowire.AppendVarint([]byte{8}, uint64(math.MaxUint64)), "page_size"},
		"a method that says it twice": {"StartAuthorization", append(append(text(1, "b"), text(2, "s")...), text(1, "b")...), "business"},
	} {
		var answer []byte
		err := conn.Invoke(t.Context(), "/pact.agent.v1.AgentService/"+c.method, c.body, &answer, grpc.ForceCodec(bytesCodec{}))
		if reason, meta := infoOf(status.Convert(err)); status.Code(err) != codes.InvalidArgument || reason != codeInvalid || meta["field"] != c.field {
			t.Errorf("%s: %v %v; want %s", name, err, meta, c.field)
		}
	}
	err := conn.Invoke(t.Context(), "/pact.agent.v1.AgentService/SendMessage", append(send, text(4, strings.Repeat("s", 3))...), new([]byte), grpc.ForceCodec(bytesCodec{}))
	if status.Code(err) == codes.InvalidArgument {
		t.Errorf("what is well-formed: %v", err)
	}
	if err := conn.Invoke(t.Context(), "/pact.agent.v1.AgentService/GetEverything", []byte{0xff}, new([]byte), grpc.ForceCodec(bytesCodec{})); reasonOf(status.Convert(err)) != codeNoMethod {
		t.Errorf("of no method: %v", err)
	}
	err = conn.Invoke(withHeaders(t.Context(), "authorization", "Bearer a", "authorization", "Bearer b"), "/pact.agent.v1.AgentService/GetStatus", []byte{}, new([]byte), grpc.ForceCodec(bytesCodec{}))
	if reasonOf(status.Convert(err)) != codeUnauthenticated {
		t.Errorf("two tokens: %v", err)
	}
}

// No message within a request is deeper than those within it are looked into.
func TestNestedMessages(t *testing.T) {
	var deepest func(m protoreflect.MessageDescriptor) int
	deepest = func(m protoreflect.MessageDescriptor) (n int) {
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); f.Message() != nil {
				n = max(n, 1+deepest(f.Message()))
			}
		}
		return n
	}
	for _, m := range Methods() {
		if n := deepest(descriptor(t, m.Name).Input()); n > maxNested {
			t.Errorf("%s: %d", m.Name, n)
		}
	}
}
