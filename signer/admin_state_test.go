package signer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/store/bolt"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// fakeState does to a bolt store what a signer does, as far as the service needs it.
type fakeState struct {
	store   *bolt.Store
	issuers []string

	mu     sync.Mutex
	status signer.StateStatus
	calls  []string
	fail   error

	before func(ctx context.Context) error // Import and Export; nil: nothing
}

func (f *fakeState) called(words ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, strings.Join(words, " "))
	return f.fail
}

func (f *fakeState) Status(context.Context) (signer.StateStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, nil
}

func (f *fakeState) wait(ctx context.Context) error {
	if f.before == nil {
		return nil
	}
	return f.before(ctx)
}

func (f *fakeState) Export(ctx context.Context, w io.Writer) error {
	if err := errors.Join(f.called("export"), f.wait(ctx)); err != nil {
		return err
	}
	st, _ := f.Status(ctx)
	_, err := signer.WriteState(ctx, w, st.Store, time.Now(), f.store)
	return err
}

func (f *fakeState) Import(ctx context.Context, r io.Reader, actor, accept string) (signer.ImportResult, error) {
	if err := errors.Join(f.called("import", actor, accept), f.wait(ctx)); err != nil {
		return signer.ImportResult{}, err
	}
	file, err := signer.ReadState(r)
	if err != nil {
		return signer.ImportResult{}, err
	}
	defer file.Close()
	closes, err := file.Check(signer.ImportCheck{Issuers: f.issuers, Store: "store-1", Accept: accept == "store-1"})
	if err != nil {
		return signer.ImportResult{}, err
	}
	act := audit.Entry{Time: time.Now(), Actor: actor, Action: "state.import", Target: "store-2"}
	if err := f.store.Import(ctx, file.Records(act, nil)); err != nil {
		return signer.ImportResult{}, err
	}
	return signer.ImportResult{Store: "store-2", File: file.Summary, EnrolmentClosed: closes, LeftOut: 3}, nil
}

func (f *fakeState) AcceptLoss(_ context.Context, id, actor, reason string) error {
	return f.called("accept-loss", id, actor, reason)
}

func (f *fakeState) OpenEnrolment(_ context.Context, actor string) error {
	return f.called("open-enrolment", actor)
}

// did is what was asked of it.
func (f *fakeState) did() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.calls, "; ")
}

// exportState receives a whole export.
func exportState(c signerv1.AdminServiceClient) ([]byte, error) {
	stream, err := c.ExportState(ctx, &signerv1.ExportStateRequest{})
	if err != nil {
		return nil, err
	}
	var file []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return file, nil
		}
		if err != nil {
			return file, err
		}
		file = append(file, m.Data...)
	}
}

// importState sends a file in small parts.
func importState(c signerv1.AdminServiceClient, accept string, file []byte) (*signerv1.ImportStateResponse, error) {
	stream, err := c.ImportState(ctx)
	if err != nil {
		return nil, err
	}
	for first := true; len(file) > 0 || first; first = false {
		n := min(len(file), 1000)
		req := &signerv1.ImportStateRequest{Data: file[:n]}
		if first {
			req.AcceptStore = accept
		}
		if stream.Send(req) != nil {
			break // the answer says why
		}
		file = file[n:]
	}
	return stream.CloseAndRecv()
}

// fillStore makes records by the operator's own acts.
func (w *adminWorld) fillStore() {
	w.t.Helper()
	c := w.admin()
	for _, call := range []func() error{
		func() error {
			_, err := c.InvalidateDevice(ctx, &signerv1.InvalidateDeviceRequest{Thumbprint: thumbprint, Reason: "lost"})
			return err
		},
		func() error {
			_, err := c.CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci", Credential: "operators-own-secret-4711"})
			return err
		},
		func() error {
			_, err := c.SetAudience(ctx, &signerv1.SetAudienceRequest{Origin: "https://p.example.com", Audience: "pact:p"})
			return err
		},
		func() error {
			_, err := c.CreateEnrollmentToken(ctx, &signerv1.CreateEnrollmentTokenRequest{ExpiresIn: durationpb.New(time.Hour)})
			return err
		},
		func() error {
			_, err := c.Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "device", Value: thumbprint}, Reason: "lost"})
			return err
		},
	} {
		if err := call(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Only administrators move a store or give it up; everybody may look.
func TestAdminStateRoles(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	w.state.status = signer.StateStatus{
		Condition: signer.StateRolledBack, Kind: "redis", Store: "store-1", Found: "store-0", Problem: "It went back.", Remedy: "Restore it.",
		CustodyHead: audit.Head{Seq: 9, Hash: "ab"}, EnrolmentClosed: true,
	}
	for _, role := range []signer.Role{signer.RoleViewer, signer.RoleOperator, signer.RoleAdmin} {
		c := w.client(w.tokens[role])
		st, err := c.GetState(ctx, &signerv1.GetStateRequest{})
		if err != nil || st.Condition != "rolled_back" || st.Kind != "redis" || st.Store != "store-1" || st.Found != "store-0" ||
			st.Problem != "It went back." || st.Remedy != "Restore it." || st.CustodyHead.GetSeq() != 9 || st.StoreHead != nil || !st.EnrolmentClosed {
			t.Errorf("%s: %v %v", role, st, err)
		}
		if code, _, body := w.rest(w.tokens[role], "GET", "/v1/state", ""); code != 200 || !strings.Contains(string(body), `"condition":"rolled_back"`) {
			t.Errorf("%s: REST %d %s", role, code, body)
		}
		_, exported := exportState(c)
		_, imported := importState(c, "", nil)
		_, accepted := c.AcceptLoss(ctx, &signerv1.AcceptLossRequest{Store: "store-1", Reason: "gone"})
		_, opened := c.OpenEnrolment(ctx, &signerv1.OpenEnrolmentRequest{})
		for name, err := range map[string]error{"export": exported, "import": imported, "accept-loss": accepted, "open-enrolment": opened} {
			if refused := status.Code(err) == codes.PermissionDenied && refusal(err).Reason == "ROLE_TOO_LOW"; refused != (role != signer.RoleAdmin) {
				t.Errorf("%s as %s: %v", name, role, err)
			}
		}
		if role != signer.RoleAdmin && w.state.did() != "" {
			t.Errorf("as %s: %s", role, w.state.did())
		}
	}
	for _, path := range []string{"/v1/state:accept-loss", "/v1/state:open-enrolment"} {
		if code, _, body := w.rest(w.tokens[signer.RoleOperator], "POST", path, "{}"); code != 403 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, _, body := w.rest(w.tokens[signer.RoleOperator], "GET", "/v1/state:export", ""); code != 403 {
		t.Errorf("export: %d %s", code, body)
	}
}

// A store is exported from one signer and imported into another, on which
// everything is as it was.
func TestAdminStateMoves(t *testing.T) {
	from := newAdminWorld(t, issuerA)
	from.fillStore()
	file, err := exportState(from.admin())
	if err != nil {
		t.Fatal(err)
	}
	sum, err := signer.CheckState(bytes.NewReader(file))
	if err != nil || sum.Store != "store-1" || sum.Devices != 1 || sum.Credentials != 1 || sum.Audiences != 1 || sum.EnrollmentTokens != 1 || sum.Kills != 1 {
		t.Fatalf("exported %+v, %v", sum, err)
	}
	if bytes.Contains(file, []byte("operators-own-secret-4711")) {
		t.Error("the file holds a secret")
	}
	act := from.lastAct()
	if act.Action != "state.export" || act.Actor != "admin@test" || act.Target != "store-1" || act.Seq != sum.AuditHead.Seq {
		t.Errorf("the export's entry is %v, the file ends with entry %d", act, sum.AuditHead.Seq)
	}

	// On REST the same bytes come as JSON.
	code, _, body := from.rest(from.tokens[signer.RoleAdmin], "GET", "/v1/state:export", "")
	var rest []byte
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		var m struct{ Result struct{ Data []byte } }
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		rest = append(rest, m.Result.Data...)
	}
	if s, err := signer.CheckState(bytes.NewReader(rest)); code != 200 || err != nil || s.Records != sum.Records+1 {
		t.Errorf("on REST %d, %+v, %v: want one audit entry more than %d records", code, s, err, sum.Records)
	}

	to := newAdminWorld(t, issuerA)
	done, err := importState(to.admin(), "", file)
	if err != nil {
		t.Fatal(err)
	}
	if c := done.Content; done.Store != "store-2" || c.Store != "store-1" || c.Sha256 != sum.SHA256 || c.Records != sum.Records || c.Devices != 1 ||
		c.Credentials != 1 || c.EnrollmentTokens != 1 || c.Audiences != 1 || c.Kills != 1 || c.AuditEntries != sum.AuditEntries || done.EnrolmentClosed || done.LeftOut != 3 {
		t.Errorf("imported %v", done)
	}
	if act := to.lastAct(); act.Action != "state.import" || act.Actor != "admin@test" || act.Seq != sum.AuditHead.Seq+1 {
		t.Errorf("the import's entry is %v", act)
	}
	d, err := to.admin().GetDevice(ctx, &signerv1.GetDeviceRequest{Thumbprint: thumbprint})
	if err != nil || d.State != "invalidated" || d.Reason != "lost" {
		t.Errorf("the device is %v, %v", d, err)
	}
	killed, err := to.admin().KillStatus(ctx, &signerv1.KillStatusRequest{})
	if err != nil || len(killed.Entries) != 1 || killed.Entries[0].Reason != "lost" {
		t.Errorf("the switch is %v, %v", killed, err)
	}
	if _, err := to.admin().CreateCredential(ctx, &signerv1.CreateCredentialRequest{Name: "ci"}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the name was free: %v", err)
	}

	_, err = importState(to.admin(), "", file)
	if status.Code(err) != codes.FailedPrecondition || refusal(err).Reason != signer.StateNotEmpty || !strings.Contains(err.Error(), "pactctl state status") {
		t.Errorf("a second import: %v", err)
	}
}

// What is refused is refused before anything is written.
func TestAdminStateImportRefused(t *testing.T) {
	from := newAdminWorld(t, issuerA)
	from.fillStore()
	file, err := exportState(from.admin())
	if err != nil {
		t.Fatal(err)
	}
	to := newAdminWorld(t, issuerA)
	elsewhere := newAdminWorld(t, issuerB)
	for name, c := range map[string]struct {
		w      *adminWorld
		accept string
		file   []byte
		code   codes.Code
		reason string
	}{
		"nothing":        {to, "", nil, codes.InvalidArgument, signer.StateFileKind},
		"something else": {to, "", []byte("hello\n"), codes.InvalidArgument, signer.StateFileKind},
		"cut":            {to, "", file[:len(file)-10], codes.InvalidArgument, signer.StateFileTruncated},
		"changed":        {to, "", bytes.Replace(file, []byte("lost"), []byte("LOST"), 1), codes.InvalidArgument, signer.StateFileDamaged},
		"newer":          {to, "", bytes.Replace(file, []byte(`"format":1`), []byte(`"format":2`), 1), codes.InvalidArgument, signer.StateFileFormat},
		"other issuers":  {elsewhere, "", file, codes.FailedPrecondition, signer.StateOtherFile},
		"long":           {to, strings.Repeat("x", 200), file, codes.InvalidArgument, "INVALID_REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := importState(c.w.admin(), c.accept, c.file)
			if status.Code(err) != c.code || refusal(err).Reason != c.reason {
				t.Errorf("got %v, want %s", err, c.reason)
			}
			n := 0
			if err := c.w.store.Export(ctx, func(r signer.Record) error {
				if r.Switch == nil && r.Schedule == nil {
					n++
				}
				return nil
			}); err != nil || n != 0 {
				t.Errorf("the store has %d records: %v", n, err)
			}
		})
	}

	stream, err := to.admin().ImportState(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); refusal(err).Metadata["field"] != "data" {
		t.Errorf("no message: %v", err)
	}
	if stream, err = to.admin().ImportState(ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.Send(&signerv1.ImportStateRequest{AcceptStore: "store-1", Data: file[:10]}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); refusal(err).Metadata["field"] != "accept_store" {
		t.Errorf("an acceptance too late: %v", err)
	}
}

// The acts pass on who did them and why; their refusals say what to do.
func TestAdminStateActs(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	c := w.admin()
	for _, req := range []*signerv1.AcceptLossRequest{{Store: "store-1"}, {Reason: "gone"}, {Store: "store-1", Reason: "a\nb"}} {
		if _, err := c.AcceptLoss(ctx, req); refusal(err).Reason != "INVALID_REQUEST" {
			t.Errorf("%v: %v", req, err)
		}
	}
	st, err := c.AcceptLoss(ctx, &signerv1.AcceptLossRequest{Store: "store-1", Reason: "gone"})
	if err != nil || st.Condition != "ok" {
		t.Errorf("accept-loss: %v %v", st, err)
	}
	if code, _, body := w.rest(w.tokens[signer.RoleAdmin], "POST", "/v1/state:accept-loss", `{"store":"store-1","reason":"on REST"}`); code != 200 {
		t.Errorf("accept-loss on REST: %d %s", code, body)
	}
	if st, err = c.OpenEnrolment(ctx, &signerv1.OpenEnrolmentRequest{}); err != nil || st.Store != "store-1" {
		t.Errorf("open-enrolment: %v %v", st, err)
	}
	if code, _, body := w.rest(w.tokens[signer.RoleAdmin], "POST", "/v1/state:open-enrolment", "{}"); code != 200 {
		t.Errorf("open-enrolment on REST: %d %s", code, body)
	}
	const want = "accept-loss store-1 admin@test gone; accept-loss store-1 admin@test on REST; open-enrolment admin@test; open-enrolment admin@test"
	if got := w.state.did(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	for _, refused := range []struct {
		err    error
		code   codes.Code
		reason string
		words  string
	}{
		{&signer.StateError{Reason: signer.StateOtherStore, Problem: "custody knows store-9"}, codes.FailedPrecondition, signer.StateOtherStore, "custody knows store-9"},
		{&audit.DamagedError{Seq: 7}, codes.DataLoss, "AUDIT_DAMAGED", "entry 7"},
		{errors.New("dial tcp 10.0.0.7: refused"), codes.Unavailable, "UNAVAILABLE", "try again"},
	} {
		w.state.fail = refused.err
		_, accepted := c.AcceptLoss(ctx, &signerv1.AcceptLossRequest{Store: "store-1", Reason: "gone"})
		_, opened := c.OpenEnrolment(ctx, &signerv1.OpenEnrolmentRequest{})
		_, imported := importState(c, "", []byte("x"))
		_, exported := exportState(c)
		for name, err := range map[string]error{"accept-loss": accepted, "open-enrolment": opened, "import": imported, "export": exported} {
			if status.Code(err) != refused.code || refusal(err).Reason != refused.reason || !strings.Contains(err.Error(), refused.words) || strings.Contains(err.Error(), "10.0.0.7") {
				t.Errorf("%s after %v: %v", name, refused.err, err)
			}
		}
	}
}

// A store is replaced by one call at a time.
func TestAdminStateOneAtATime(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	file := stateFile(t, memoryState{})
	begun, end := make(chan struct{}), make(chan struct{})
	w.state.before = func(ctx context.Context) error {
		close(begun)
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	first := make(chan error, 1)
	go func() {
		_, err := importState(w.admin(), "", file)
		first <- err
	}()
	<-begun
	_, imported := importState(w.admin(), "", file)
	_, accepted := w.admin().AcceptLoss(ctx, &signerv1.AcceptLossRequest{Store: "store-1", Reason: "gone"})
	for _, err := range []error{imported, accepted} {
		if status.Code(err) != codes.Aborted || refusal(err).Reason != "BUSY" {
			t.Errorf("meanwhile: %v", err)
		}
	}
	close(end)
	if err := <-first; err != nil {
		t.Errorf("the first one: %v", err)
	}
	w.state.before = nil
	if _, err := w.admin().AcceptLoss(ctx, &signerv1.AcceptLossRequest{Store: "store-1", Reason: "gone"}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A large file takes longer than the listener gives to other calls.
func TestAdminStateOutlivesTimeouts(t *testing.T) {
	w := newAdminWorld(t, issuerA)
	const timeout = 3 * time.Second // in which a request comes, on a busy machine too
	w.serve(timeout)
	w.state.before = func(ctx context.Context) error {
		select {
		case <-time.After(timeout + timeout/10):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	to := newAdminWorld(t, issuerA)
	to.serve(timeout)
	to.state.before = w.state.before
	from, into, file := w.admin(), to.admin(), stateFile(t, memoryState{})
	var beside sync.WaitGroup
	beside.Go(func() {
		if _, err := exportState(from); err != nil {
			t.Errorf("export: %v", err)
		}
	})
	beside.Go(func() {
		if _, err := importState(into, "", file); err != nil {
			t.Errorf("import: %v", err)
		}
	})
	defer beside.Wait()
	if code, _, body := w.rest(w.tokens[signer.RoleAdmin], "GET", "/v1/state:export", ""); code != 200 || len(body) == 0 {
		t.Errorf("export on REST: %d %s", code, body)
	}
}
