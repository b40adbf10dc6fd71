package signer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pactsigner/pactsigner/internal/audit"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

const (
	// stateChunk is how much of a state file one message carries.
	stateChunk = 32 << 10
	// longTimeout bounds the transfer of a state file and the wait for a kill, for
	// which the listener's own timeouts are too short.
	longTimeout = time.Hour
)

// isLong tells whether a path's call may take long: state files are transferred, or
// a kill is waited for, which a store that is away holds up.
func isLong(path string) bool {
	switch path {
	case signerv1.AdminService_ExportState_FullMethodName, signerv1.AdminService_ImportState_FullMethodName, "/v1/state:export",
		signerv1.AdminService_WaitKill_FullMethodName:
		return true
	}
	return strings.HasPrefix(path, "/v1/kill/") && strings.HasSuffix(path, ":wait")
}

// allowLong gives such a call the time that it takes. Of a caller without a token
// nobody waits for more than of any other.
func (a *Admin) allowLong(w http.ResponseWriter, r *http.Request) {
	if !isLong(r.URL.Path) {
		return
	}
	if _, ok := a.authenticate(r.Header.Values("Authorization")); !ok {
		return
	}
	until, c := time.Now().Add(longTimeout), http.NewResponseController(w)
	for _, set := range []func(time.Time) error{c.SetReadDeadline, c.SetWriteDeadline} {
		if err := set(until); err != nil {
			a.cfg.Log.WarnContext(r.Context(), "the listener's own timeouts stand for a long call", "error", err)
		}
	}
}

// state is what the methods on the whole store work on.
func (a *Admin) state() (AdminState, error) {
	if a.cfg.State == nil {
		return nil, adminRefuse(codes.Unimplemented, StateNotConfigured, nil, "this signer has no such access to its store")
	}
	return a.cfg.State, nil
}

// GetState implements signerv1.AdminServiceServer.
func (a *Admin) GetState(ctx context.Context, _ *signerv1.GetStateRequest) (*signerv1.StoreState, error) {
	s, err := a.state()
	if err != nil {
		return nil, err
	}
	return storeState(ctx, s)
}

func storeState(ctx context.Context, s AdminState) (*signerv1.StoreState, error) {
	st, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	return &signerv1.StoreState{
		Condition: string(st.Condition), Kind: st.Kind, Store: st.Store, Found: st.Found, Problem: st.Problem, Remedy: st.Remedy,
		CustodyHead: headMessage(st.CustodyHead), StoreHead: headMessage(st.StoreHead), EnrolmentClosed: st.EnrolmentClosed,
	}, nil
}

func headMessage(h audit.Head) *signerv1.AuditHead {
	if h == (audit.Head{}) {
		return nil
	}
	return &signerv1.AuditHead{Seq: h.Seq, Hash: h.Hash}
}

// ExportState implements signerv1.AdminServiceServer. That somebody took the records
// is in the audit log before the first of them leaves, and so in the file too.
func (a *Admin) ExportState(_ *signerv1.ExportStateRequest, out grpc.ServerStreamingServer[signerv1.ExportStateResponse]) error {
	s, err := a.state()
	if err != nil {
		return err
	}
	ctx := out.Context()
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if err := a.stands(ctx, a.cfg.Store.AppendAudit(ctx, a.entry(ctx, "state.export", "", st.Store, ""))); err != nil {
		return err
	}
	return stateRefusal(s.Export(ctx, exportWriter{out}))
}

// exportWriter sends what is written as messages.
type exportWriter struct {
	out grpc.ServerStreamingServer[signerv1.ExportStateResponse]
}

// Write implements io.Writer.
func (w exportWriter) Write(b []byte) (int, error) {
	sent := 0
	for part := range slices.Chunk(b, stateChunk) {
		if err := w.out.Send(&signerv1.ExportStateResponse{Data: part}); err != nil {
			return sent, err
		}
		sent += len(part)
	}
	return sent, nil
}

// ImportState implements signerv1.AdminServiceServer.
func (a *Admin) ImportState(in grpc.ClientStreamingServer[signerv1.ImportStateRequest, signerv1.ImportStateResponse]) error {
	s, err := a.state()
	if err != nil {
		return err
	}
	first, err := in.Recv()
	if errors.Is(err, io.EOF) {
		return adminInvalid("data", "is required")
	}
	if err != nil {
		return err
	}
	if err := adminText("accept_store", first.AcceptStore, adminMaxName, false); err != nil {
		return err
	}
	if !a.replacing.TryLock() {
		return adminBusy()
	}
	defer a.replacing.Unlock()
	ctx := in.Context()
	res, err := s.Import(ctx, &importReader{in: in, data: first.Data}, adminCaller(ctx).Name, first.AcceptStore)
	if err != nil {
		return stateRefusal(err)
	}
	f := res.File
	return in.SendAndClose(&signerv1.ImportStateResponse{
		Store: res.Store, EnrolmentClosed: res.EnrolmentClosed, LeftOut: res.LeftOut,
		Content: &signerv1.StateContent{
			Store: f.Store, ExportedAt: adminStamp(f.ExportedAt), Records: f.Records, Sha256: f.SHA256,
			Devices: f.Devices, Credentials: f.Credentials, EnrollmentTokens: f.EnrollmentTokens,
			Audiences: f.Audiences, Kills: f.Kills, AuditEntries: f.AuditEntries,
		},
	})
}

// importReader reads the data of messages.
type importReader struct {
	in   grpc.ClientStreamingServer[signerv1.ImportStateRequest, signerv1.ImportStateResponse]
	data []byte
}

// Read implements io.Reader.
func (r *importReader) Read(b []byte) (int, error) {
	for len(r.data) == 0 {
		m, err := r.in.Recv()
		if err != nil {
			return 0, err // io.EOF when the caller has sent all
		}
		if m.AcceptStore != "" {
			return 0, adminInvalid("accept_store", "belongs in the first message")
		}
		r.data = m.Data
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}

// AcceptLoss implements signerv1.AdminServiceServer.
func (a *Admin) AcceptLoss(ctx context.Context, req *signerv1.AcceptLossRequest) (*signerv1.StoreState, error) {
	s, err := a.state()
	if err != nil {
		return nil, err
	}
	if err := adminText("store", req.Store, adminMaxName, true); err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, true); err != nil {
		return nil, err
	}
	if !a.replacing.TryLock() {
		return nil, adminBusy()
	}
	defer a.replacing.Unlock()
	ctx = context.WithoutCancel(ctx) // the operator's leaving stops nothing
	if err := s.AcceptLoss(ctx, req.Store, adminCaller(ctx).Name, req.Reason); err != nil {
		return nil, stateRefusal(err)
	}
	return storeState(ctx, s)
}

// OpenEnrolment implements signerv1.AdminServiceServer.
func (a *Admin) OpenEnrolment(ctx context.Context, _ *signerv1.OpenEnrolmentRequest) (*signerv1.StoreState, error) {
	s, err := a.state()
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := s.OpenEnrolment(ctx, adminCaller(ctx).Name); err != nil {
		return nil, stateRefusal(err)
	}
	return storeState(ctx, s)
}

func adminBusy() error {
	return adminRefuse(codes.Aborted, "BUSY", nil, "the store is being replaced by another call: wait, and look at pactctl state status")
}

// stateRefusal puts a refusal of AdminState into words; other errors stand.
func stateRefusal(err error) error {
	var (
		refused *StateError
		file    *StateFileError
		damaged *audit.DamagedError
	)
	switch {
	case errors.As(err, &refused):
		return adminRefuse(codes.FailedPrecondition, refused.Reason, nil, "%s", refused.Problem)
	case errors.As(err, &file):
		return adminRefuse(codes.InvalidArgument, file.Reason, map[string]string{"line": strconv.FormatUint(file.Line, 10)},
			"%s. Nothing was written", file)
	case errors.Is(err, ErrNotEmpty):
		return adminRefuse(codes.FailedPrecondition, StateNotEmpty, nil,
			"the store has records already, and nothing was written: import into an empty one, or give this one up by its name, as pactctl state status shows it")
	case errors.As(err, &damaged):
		seq := strconv.FormatUint(damaged.Seq, 10)
		return adminRefuse(codes.DataLoss, "AUDIT_DAMAGED", map[string]string{"seq": seq},
			"entry %s of the audit log is damaged and cannot be read, and a file without it would not be whole: restore the store from its backup", seq)
	}
	return err
}
