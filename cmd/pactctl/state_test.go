package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/internal/server"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// stateService answers as a signer whose store is in some condition.
type stateService struct {
	signerv1.UnimplementedAdminServiceServer
	state  *signerv1.StoreState
	file   []byte // what an export sends
	broken error  // ends an export
	sha256 string // that an import tells
	got    *bytes.Buffer
	accept string
	left   uint64 // out of an import
}

func (s *stateService) GetState(context.Context, *signerv1.GetStateRequest) (*signerv1.StoreState, error) {
	return s.state, nil
}

func (s *stateService) ExportState(_ *signerv1.ExportStateRequest, out grpc.ServerStreamingServer[signerv1.ExportStateResponse]) error {
	if err := out.Send(&signerv1.ExportStateResponse{Data: s.file}); err != nil {
		return err
	}
	return s.broken
}

func (s *stateService) ImportState(in grpc.ClientStreamingServer[signerv1.ImportStateRequest, signerv1.ImportStateResponse]) error {
	s.got = &bytes.Buffer{}
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		s.accept += m.AcceptStore
		s.got.Write(m.Data)
	}
	return in.SendAndClose(&signerv1.ImportStateResponse{Store: "new", EnrolmentClosed: s.accept != "", LeftOut: s.left, Content: &signerv1.StateContent{Records: 2, Sha256: s.sha256}})
}

func (s *stateService) AcceptLoss(_ context.Context, req *signerv1.AcceptLossRequest) (*signerv1.StoreState, error) {
	return &signerv1.StoreState{Condition: "ok", Kind: "redis", Store: "new", Found: "new", EnrolmentClosed: true}, nil
}

// records is a store of devices, of which the file of an export is made.
type records []signer.Device

func (r records) Export(_ context.Context, yield func(signer.Record) error) error {
	for _, d := range r {
		if err := yield(signer.Record{Device: &d}); err != nil {
			return err
		}
	}
	return nil
}

func (r records) Import(context.Context, func() (signer.Record, error)) error { return nil }

func stateFile(t *testing.T, n int) ([]byte, string) {
	t.Helper()
	var b bytes.Buffer
	sum, err := signer.WriteState(context.Background(), &b, "old", testNow, make(records, n))
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), sum.SHA256
}

// A store that is not served from is told with what to do, and fails a script.
func TestStateStatus(t *testing.T) {
	svc := &stateService{}
	url, token, ca := adminServer(t, svc)
	run := func(input string, person bool, args ...string) (int, string, string) {
		a, stdout, stderr := testApp(input, person)
		code := a.run(context.Background(), append(args, "--server", url, "--token-file", token, "--ca-file", ca))
		return code, stdout.String(), stderr.String()
	}
	for _, c := range []struct {
		state *signerv1.StoreState
		code  int
		want  string
	}{
		{&signerv1.StoreState{Condition: "ok", Kind: "redis", Store: "abc", Found: "abc", StoreHead: &signerv1.AuditHead{Seq: 7}}, 0,
			"condition   ok\nkind        redis\nstore       abc\naudit log   up to entry 7\n"},
		{&signerv1.StoreState{Condition: "lost", Kind: "redis", Store: "abc", Problem: "It is empty.", Remedy: "Fill it.", CustodyHead: &signerv1.AuditHead{Seq: 7}}, exitFailed,
			"condition   lost\nkind        redis\nstore       abc\nfound       no id\nin custody  up to entry 7\n\nIt is empty.\n\nFill it.\n"},
		{&signerv1.StoreState{Condition: "foreign", Kind: "redis", Store: "abc", Found: "xyz\x1b[2J"}, exitFailed,
			"condition   foreign\nkind        redis\nstore       abc\nfound       xyz\uFFFD[2J\n"},
		{&signerv1.StoreState{Condition: "ok", Kind: "bolt", Store: "abc", Found: "abc", EnrolmentClosed: true}, 0,
			"condition   ok\nkind        bolt\nstore       abc\nenrolment   closed, since the store was lost or went back\n\nWho was invalidated after the store's last export or backup is not known any\nmore. When you have invalidated those again: pactctl state open-enrolment.\n"},
		{&signerv1.StoreState{Condition: "unknown", Kind: "redis", Store: "abc"}, exitFailed, "condition   unknown\nkind        redis\nstore       abc\nfound       no id\n"},
		{&signerv1.StoreState{Condition: "uninitialised"}, exitFailed, "condition   uninitialised\nstore       none yet\n"},
	} {
		svc.state = c.state
		code, stdout, stderr := run("", false, "state", "status")
		if code != c.code || stdout != c.want || (code != 0) != strings.Contains(stderr, "condition is "+c.state.Condition+": ") || strings.Contains(stderr, "503") != (code != 0 && c.state.Condition != "unknown") {
			t.Errorf("%s: %d\n%s%s", c.state.Condition, code, stdout, stderr)
		}
		if code, stdout, _ := run("", false, "state", "status", "-o", "json"); code != c.code || !strings.Contains(stdout, `"condition": "`+c.state.Condition+`"`) {
			t.Errorf("%s as JSON: %d %s", c.state.Condition, code, stdout)
		}
	}

	// What is forgotten is said before the question, and depends on the condition.
	for condition, want := range map[string]string{"lost": "An empty store takes its place; what", "foreign": "as it is, if it was this", "rolled_back": "The store stays as it is, and goes up to audit entry 5 of 7."} {
		svc.state = &signerv1.StoreState{Condition: condition, Store: "abc", StoreHead: &signerv1.AuditHead{Seq: 5}, CustodyHead: &signerv1.AuditHead{Seq: 7}}
		code, stdout, stderr := run("n\n", true, "state", "accept-loss", "--store", "abc", "--reason", "gone")
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, want) || !strings.Contains(stderr, "Give up store abc for good? [y/N]") {
			t.Errorf("%s: %d %s %s", condition, code, stdout, stderr)
		}
		code, stdout, stderr = run("y\n", true, "state", "accept-loss", "--store", "abc", "--reason", "gone")
		if code != 0 || !strings.HasPrefix(stdout, "Store abc is given up. The store is new from now on.\n") {
			t.Errorf("%s: %d %s %s", condition, code, stdout, stderr)
		}
	}
}

// What arrives is a whole file, or there is none.
func TestStateExportBroken(t *testing.T) {
	file, _ := stateFile(t, 3)
	var url, token, ca string
	for name, c := range map[string]struct {
		file   []byte
		broken error
		want   string
	}{
		"an error":   {file[:100], status.Error(codes.Unavailable, "the store is away"), "cannot reach the signer"},
		"cut":        {file[:len(file)-3], nil, "what the signer sent is not a whole state file"},
		"changed":    {bytes.Replace(file, []byte("issuer"), []byte("ISSUER"), 1), nil, "what the signer sent is not a whole state file"},
		"late error": {file, status.Error(codes.Unavailable, "the store is away"), "cannot reach the signer"},
	} {
		url, token, ca = adminServer(t, &stateService{file: c.file, broken: c.broken})
		a, stdout, stderr := testApp("", false)
		path := filepath.Join(t.TempDir(), "state.ndjson")
		code := a.run(context.Background(), []string{"state", "export", path, "--server", url, "--token-file", token, "--ca-file", ca})
		if code != exitFailed || stdout.Len() > 0 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: %d %s %s", name, code, stdout, stderr)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is a file (%v)", name, err)
		}
	}
	a, _, stderr := testApp("", true)
	a.width = 80
	if code := a.run(context.Background(), []string{"state", "export", "-", "--server", url, "--token-file", token, "--ca-file", ca}); code != exitUsage || !strings.Contains(stderr.String(), "is a terminal") {
		t.Errorf("to a terminal: %d %s", code, stderr)
	}
}

// A file goes over in parts, and what was imported is what was sent.
func TestStateImport(t *testing.T) {
	file, digest := stateFile(t, 1000)
	svc := &stateService{state: &signerv1.StoreState{Condition: "lost", Kind: "redis", Store: "abc"}, sha256: digest}
	url, token, ca := adminServer(t, svc)
	path := filepath.Join(t.TempDir(), "state.ndjson")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) (int, string, string) {
		a, stdout, stderr := testApp(input, true)
		code := a.run(context.Background(), append([]string{"state", "import", path, "--server", url, "--token-file", token, "--ca-file", ca}, args...))
		return code, stdout.String(), stderr.String()
	}
	code, stdout, stderr := run("n\n", "--accept-loss", "abc")
	if code != exitFailed || svc.got != nil || !strings.Contains(stderr, "devices           1000") || !strings.Contains(stderr, "What store abc knows and the file does not is forgotten") ||
		!strings.Contains(stderr, "Give up store abc, and put these records in its place? [y/N]") {
		t.Errorf("declined: %d %s %s", code, stdout, stderr)
	}
	code, stdout, stderr = run("y\n", "--accept-loss", "abc")
	if code != 0 || svc.accept != "abc" || !bytes.Equal(svc.got.Bytes(), file) {
		t.Errorf("accepted: %d %s %s, %q and %d bytes of %d arrived", code, stdout, stderr, svc.accept, svc.got.Len(), len(file))
	}
	if !strings.HasPrefix(stdout, "Imported 2 records. The store is new from now on.\n") || !strings.Contains(stdout, "Enrolment is closed: the file may lack invalidations.") {
		t.Errorf("it says %s", stdout)
	}
	svc.left = 1
	if _, stdout, _ := run("y\n"); !strings.HasPrefix(stdout, "Imported 1 record. The") || !strings.Contains(stdout, "Left out: 1 record of issuers that are retired.") {
		t.Errorf("with a record of a retired issuer it says %s", stdout)
	}
	svc.sha256 = "other"
	if code, stdout, stderr = run("y\n"); code != exitFailed || stdout != "" || !strings.Contains(stderr, "the file was changed while it was sent") {
		t.Errorf("another file: %d %s %s", code, stdout, stderr)
	}
}

// An embedded signer whose store was lost gets its records back from an export.
func TestStateRestored(t *testing.T) {
	t.Setenv("PACT_KEYRING", "off")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Data = filepath.Join(dir, "data")
	for _, l := range []*config.Listener{&cfg.Listeners.Public, &cfg.Listeners.GRPC, &cfg.Listeners.Admin, &cfg.Listeners.Ops} {
		l.Address = "127.0.0.1:0"
	}
	var s *server.Server
	start := func() {
		t.Helper()
		var err error
		if s, err = server.New(cfg, server.Options{Version: "test"}); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Ready():
		case <-ctx.Done():
			t.Fatal("the signer did not become ready")
		}
	}
	stop := func() {
		t.Helper()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	}
	ctl := func(want int, args ...string) string {
		t.Helper()
		a, stdout, stderr := testApp("", false)
		code := a.run(ctx, append(args, "--yes", "--server", s.Info().Admin, "--token-file", s.Info().AdminTokenFile))
		if code != want {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout.String() + stderr.String()
	}
	has := func(text, want string) {
		t.Helper()
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}

	start()
	ctl(0, "devices", "invalidate", testDevice, "--reason", "lost")
	ctl(0, "credentials", "create", "--name", "ci")
	ctl(0, "audiences", "set", "https://p.example.com", "pact:p")
	ctl(0, "kill", "--subject", "pa_x", "--reason", "drill")
	before := ctl(0, "credentials", "list") + ctl(0, "devices", "list") + ctl(0, "audiences", "list")
	file := filepath.Join(dir, "state.ndjson")
	ctl(0, "state", "export", file)
	stop()

	if err := os.Remove(filepath.Join(cfg.Data, "store.db")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Init(ctx, cfg, server.InitOptions{AcceptLostStore: true}); err != nil {
		t.Fatal(err)
	}
	start()
	status := ctl(0, "state", "status")
	has(status, "closed, since the store was lost")
	_, id, _ := strings.Cut(status, "store")
	id = strings.Fields(id)[0]
	has(ctl(exitFailed, "state", "import", file), "--accept-loss "+id)
	has(ctl(0, "state", "import", file, "--accept-loss", id), "Imported ")
	if after := ctl(0, "credentials", "list") + ctl(0, "devices", "list") + ctl(0, "audiences", "list"); after != before {
		t.Errorf("there was\n%sand is\n%s", before, after)
	}
	has(ctl(0, "kill", "status"), "drill")
	has(ctl(0, "audit", "verify"), "is whole")
	log := ctl(0, "audit", "list")
	has(log, "state.export")
	has(log, "state.import")
	stop()

	start() // custody knows the log's head
	has(ctl(0, "state", "status"), "condition   ok")
	ctl(0, "state", "open-enrolment")
	if strings.Contains(ctl(0, "state", "status"), "closed") {
		t.Error("enrolment is closed still")
	}
	stop()
}
