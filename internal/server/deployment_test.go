package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/internal/config"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// testConfig is an embedded signer on free ports.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.Data = t.TempDir()
	c.Listeners = config.Listeners{
		Public: config.Listener{Address: "127.0.0.1:0"},
		GRPC:   config.Listener{Address: "127.0.0.1:0"},
		Admin:  config.Listener{Address: "127.0.0.1:0"},
		Ops:    config.Listener{Address: "127.0.0.1:0"},
	}
	c, err := c.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t *testing.T, c config.Config, o openOptions) (*state, error) {
	t.Helper()
	s, err := openState(context.Background(), c, o, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Cleanup(func() { s.close() })
	}
	return s, err
}

func mustOpen(t *testing.T, c config.Config, o openOptions) *state {
	t.Helper()
	s, err := open(t, c, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t *testing.T, c config.Config, want string) {
	t.Helper()
	if _, err := open(t, c, openOptions{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("opened with %v, want %q", err, want)
	}
}

// A store that is gone, was emptied or replaced by one without a mark is not taken
// for a new deployment.
func TestLostStore(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"gone":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"no mark": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			db, err := bbolt.Open(path, 0o600, nil)
			return errors.Join(err, db.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			mustOpen(t, c, openOptions{}).close()
			lost, err := os.ReadFile(c.Store.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := lose(c.Store.Path); err != nil {
				t.Fatal(err)
			}
			for range 2 { // refusing makes nothing
				refused(t, c, "--accept-lost-store")
			}
			s := mustOpen(t, c, openOptions{acceptLostStore: true})
			if !s.deployment.EnrolmentClosed {
				t.Error("enrolment is not closed")
			}
			s.close()
			s = mustOpen(t, c, openOptions{})
			if !s.deployment.EnrolmentClosed || s.deployment.State != ready {
				t.Errorf("after a restart: %+v", s.deployment)
			}
			s.close()
			s = mustOpen(t, c, openOptions{openEnrolment: true})
			if s.deployment.EnrolmentClosed {
				t.Error("enrolment is still closed")
			}
			s.close()
			// The lost one has been given up.
			if err := os.WriteFile(c.Store.Path, lost, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, c, "before its loss was accepted")
		})
	}
}

// The store of another deployment is refused.
func TestForeignStore(t *testing.T) {
	c, other := testConfig(t), testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	mustOpen(t, other, openOptions{}).close()
	foreign, err := os.ReadFile(other.Store.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Store.Path, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "belongs to another deployment")
}

// A store from before an operator's act is refused, until that is accepted.
func TestRolledBackStore(t *testing.T) {
	ctx := context.Background()
	c := testConfig(t)
	act := func(s *state, times int) {
		t.Helper()
		h := &auditHead{keyring: s.keyring, store: s.store}
		for range times {
			if err := errors.Join(s.store.AppendAudit(ctx, audit.Entry{Action: "test"}), h.Record(ctx)); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func() []byte {
		t.Helper()
		content, err := os.ReadFile(c.Store.Path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(c.Store.Path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, c, openOptions{})
	s.close()
	empty := read()
	s = mustOpen(t, c, openOptions{})
	act(s, 1)
	s.close()
	old := read()
	s = mustOpen(t, c, openOptions{})
	act(s, 2)
	s.close()
	newest := read()
	for _, back := range [][]byte{empty, old} {
		write(back)
		refused(t, c, "--accept-rolled-back-store")
	}
	// Another history from the same copy on is not taken for the recorded one.
	c2 := c
	c2.Custody.Dir = filepath.Join(t.TempDir(), "custody")
	if err := os.CopyFS(c2.Custody.Dir, os.DirFS(c.Custody.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(c2.Custody.Dir, "identity.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, c2, openOptions{acceptRolledBackStore: true})
	if !s.deployment.EnrolmentClosed || s.deployment.AuditHead.Seq != 1 {
		t.Errorf("accepted: %+v", s.deployment)
	}
	act(s, 3)
	s.close()
	mustOpen(t, c2, openOptions{}).close()
	refused(t, c, "went back")
	write(newest)
	s = mustOpen(t, c, openOptions{})
	if s.deployment.EnrolmentClosed || s.deployment.AuditHead.Seq != 3 {
		t.Errorf("restored: %+v", s.deployment)
	}
}

// What is recorded is never lowered, and records at one time do not lose one
// another's.
func TestAuditHeadRecord(t *testing.T) {
	ctx := context.Background()
	s := mustOpen(t, testConfig(t), openOptions{})
	var acting sync.WaitGroup
	for range 2 { // as two replicas
		h := &auditHead{keyring: s.keyring, store: s.store}
		for range 10 {
			acting.Go(func() {
				if err := errors.Join(s.store.AppendAudit(ctx, audit.Entry{Action: "test"}), h.Record(ctx)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	acting.Wait()
	h := &auditHead{keyring: s.keyring, store: s.store}
	heads, err := h.Heads(ctx)
	if err != nil || len(heads) != 2 || heads[0] != heads[1] || heads[0].Seq != 20 {
		t.Fatalf("%+v, %v", heads, err)
	}
	d, rev, err := loadDeployment(ctx, s.keyring)
	if err != nil {
		t.Fatal(err)
	}
	d.AuditHead = audit.Head{Seq: 30, Hash: "of another replica"}
	if _, err := saveDeployment(ctx, s.keyring, rev, d); err != nil {
		t.Fatal(err)
	}
	if err := h.Record(ctx); err != nil {
		t.Fatal(err)
	}
	if again, _, err := loadDeployment(ctx, s.keyring); err != nil || again.AuditHead != d.AuditHead {
		t.Errorf("%+v, %v", again, err)
	}
}

// Nor are keys that are gone: every subject would change.
func TestLostCustody(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.RemoveAll(c.Custody.Dir); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "restore that folder")
	if err := os.Mkdir(c.Custody.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "restore the folder")
}

// A first start that ended anywhere goes on.
func TestInterruptedFirstStart(t *testing.T) {
	ctx := context.Background()
	t.Run("before the store", func(t *testing.T) {
		c := testConfig(t)
		s := mustOpen(t, c, openOptions{})
		_, rev, err := loadDeployment(ctx, s.keyring)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := saveDeployment(ctx, s.keyring, rev, deployment{State: initialising}); err != nil {
			t.Fatal(err)
		}
		s.close()
		for _, file := range []string{c.Store.Path, adminTokenFile(c)} {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		s = mustOpen(t, c, openOptions{})
		if s.deployment.State != ready || s.deployment.EnrolmentClosed || s.token != tokenMade {
			t.Errorf("%+v, token %v", s.deployment, s.token)
		}
	})
	t.Run("after the token's file", func(t *testing.T) {
		c := testConfig(t)
		s := mustOpen(t, c, openOptions{})
		token, err := os.ReadFile(adminTokenFile(c))
		if err != nil {
			t.Fatal(err)
		}
		hash := s.deployment.AdminToken
		d, rev, err := loadDeployment(ctx, s.keyring)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := saveDeployment(ctx, s.keyring, rev, deployment{State: initialising, Store: d.Store}); err != nil {
			t.Fatal(err)
		}
		s.close()
		s = mustOpen(t, c, openOptions{})
		again, err := os.ReadFile(adminTokenFile(c))
		if err != nil || string(again) != string(token) || s.deployment.AdminToken != hash {
			t.Errorf("the token is another: %v", err)
		}
	})
	t.Run("something else in the token's place", func(t *testing.T) {
		c := testConfig(t)
		if err := os.WriteFile(adminTokenFile(c), []byte("my notes\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, c, "holds something else")
	})
}

func TestNewerDeployment(t *testing.T) {
	ctx := context.Background()
	c := testConfig(t)
	s := mustOpen(t, c, openOptions{})
	_, rev, err := loadDeployment(ctx, s.keyring)
	if err != nil {
		t.Fatal(err)
	}
	newer := fmt.Sprintf(`{"format":%d,"minReader":%d,"state":"ready"}`, newestFormat+1, newestFormat+1)
	if _, err := s.keyring.Swap(ctx, deploymentName, rev, []byte(newer)); err != nil {
		t.Fatal(err)
	}
	s.close()
	refused(t, c, "use a newer version")
}

func TestTokenFileWithAnotherToken(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.WriteFile(adminTokenFile(c), []byte("pact_admin_other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, c, openOptions{})
	if s.token != tokenOther || !strings.Contains(s.token.note(), "--new-admin-token") {
		t.Errorf("token %v: %s", s.token, s.token.note())
	}
}

func TestPassphraseFile(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		ok      bool
	}{
		"line":           {"correct horse\n", true},
		"no line end":    {"correct horse", true},
		"windows":        {"correct horse\r\n", true},
		"empty":          {"", false},
		"empty line":     {"\n", false},
		"two lines":      {"a\nb\n", false},
		"trailing blank": {"correct horse\n\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := readPassphrase(file)
			if (err == nil) != c.ok || c.ok && string(p) != "correct horse" {
				t.Errorf("read %d bytes, %v", len(p), err)
			}
			if err != nil && !strings.Contains(err.Error(), "custody.passphraseFile") {
				t.Errorf("%v does not name the key", err)
			}
		})
	}
}

// An act stands while custody is away, and says that it is not durable there yet.
func TestActWithoutCustody(t *testing.T) {
	c := testConfig(t)
	s := launch(t, c)
	documents := filepath.Join(c.Custody.Dir, "documents")
	token, err := os.ReadFile(s.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(hostPort(s.Info().Admin), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+strings.TrimSpace(string(token)))
	// invalidate returns what the answer says of its durability.
	invalidate := func() []string {
		t.Helper()
		var header metadata.MD
		_, err := signerv1.NewAdminServiceClient(conn).InvalidateDevice(ctx,
			&signerv1.InvalidateDeviceRequest{Thumbprint: strings.Repeat("A", 43)}, grpc.Header(&header))
		if err != nil {
			t.Fatal(err)
		}
		return header.Get(signer.NotDurableHeader)
	}
	if said := invalidate(); said != nil {
		t.Errorf("with custody there: %q", said)
	}
	if err := os.Rename(documents, documents+".away"); err != nil {
		t.Fatal(err)
	}
	if said := invalidate(); len(said) != 1 {
		t.Errorf("with custody away: %q", said)
	}
	if err := os.RemoveAll(documents); err != nil { // what custody may have made meanwhile
		t.Fatal(err)
	}
	if err := os.Rename(documents+".away", documents); err != nil {
		t.Fatal(err)
	}
	invalidate()
	d, _, err := loadDeployment(t.Context(), s.state.keyring)
	if err != nil || d.AuditHead.Seq != 3 {
		t.Errorf("recorded %+v, %v", d.AuditHead, err)
	}
}

// The operators' side of an embedded store: it is well, or the signer would not run;
// its records can be taken into another one, which is empty.
func TestEmbeddedState(t *testing.T) {
	withIssuer := func() config.Config {
		c := testConfig(t)
		is := config.DefaultIssuer()
		is.URL, is.Enrolment = fleetIssuer, "open"
		c.Issuers = []config.Issuer{is}
		return c
	}
	from := launch(t, withIssuer())
	content, err := os.ReadFile(from.Info().AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	credential := from.letIn(t, strings.TrimSpace(string(content)))
	state := from.operators.config.State
	status, err := state.Status(t.Context())
	if err != nil || status.Condition != signer.StateOK || status.Store == "" || status.Found != status.Store || status.StoreHead.Seq == 0 {
		t.Fatalf("%+v, %v", status, err)
	}
	var refused *signer.StateError
	if err := state.AcceptLoss(t.Context(), status.Store, "test", "why not"); !errors.As(err, &refused) || refused.Reason != signer.StateUnsupported {
		t.Errorf("accepted with %v", err)
	}
	var file bytes.Buffer
	if err := state.Export(t.Context(), &file); err != nil {
		t.Fatal(err)
	}

	c := withIssuer()
	to := launch(t, c)
	state = to.operators.config.State
	status, err = state.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := state.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", "another"); !errors.As(err, &refused) || refused.Reason != signer.StateOtherStore {
		t.Errorf("imported with %v", err)
	}
	result, err := state.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", status.Store)
	if err != nil || result.Store != status.Store || !result.EnrolmentClosed {
		t.Fatalf("%+v, %v", result, err)
	}
	to.signs(t, credential)
	if _, err := state.Import(t.Context(), bytes.NewReader(file.Bytes()), "test", status.Store); !errors.As(err, &refused) || refused.Reason != signer.StateNotEmpty {
		t.Errorf("imported twice: %v", err)
	}
	if err := to.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	launch(t, c).signs(t, credential)
}

// Enrolment that was closed is opened while the signer runs.
func TestOpenEnrolmentWhileRunning(t *testing.T) {
	c := testConfig(t)
	mustOpen(t, c, openOptions{}).close()
	if err := os.Remove(c.Store.Path); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, c, openOptions{acceptLostStore: true}).close()
	s := launch(t, c)
	if notes := strings.Join(s.Info().Notes, " "); !s.keeper.enrolmentClosed() || !strings.Contains(notes, "enrolment is closed") {
		t.Errorf("notes: %s", notes)
	}
	for range 2 { // the second changes nothing
		if err := s.operators.config.State.OpenEnrolment(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	if s.keeper.enrolmentClosed() {
		t.Error("enrolment is closed still")
	}
	entries, err := s.state.store.Audit(t.Context(), 0, 10)
	if err != nil || len(entries) != 1 || entries[0].Action != "state.open_enrolment" || entries[0].Actor != "test" {
		t.Errorf("audit: %+v, %v", entries, err)
	}
}
