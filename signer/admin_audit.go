package signer

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// ListAudit implements signerv1.AdminServiceServer. Its page token is the number of
// the last entry.
func (a *Admin) ListAudit(ctx context.Context, req *signerv1.ListAuditRequest) (*signerv1.ListAuditResponse, error) {
	size, err := adminPageSize(req.PageSize)
	if err != nil {
		return nil, err
	}
	var seq uint64
	if req.PageToken != "" {
		if seq, err = strconv.ParseUint(req.PageToken, 10, 64); err != nil {
			return nil, adminInvalid("page_token", "is not one that this signer gave out")
		}
	}
	list, err := a.cfg.Store.Audit(ctx, seq, size)
	var damaged *audit.DamagedError
	if errors.As(err, &damaged) && len(list) == 0 {
		return nil, adminRefuse(codes.DataLoss, "AUDIT_DAMAGED", map[string]string{"seq": strconv.FormatUint(damaged.Seq, 10)},
			"entry %d of the audit log is damaged and cannot be read: compare with your exported log, and restore the store from its backup", damaged.Seq)
	}
	if err != nil && damaged == nil {
		return nil, err
	}
	resp := &signerv1.ListAuditResponse{}
	for _, e := range list {
		resp.Entries = append(resp.Entries, &signerv1.AuditEntry{
			Seq: e.Seq, Time: adminStamp(e.Time), Actor: e.Actor, Action: e.Action, Issuer: e.Issuer, Target: e.Target,
			Reason: e.Reason, Detail: e.Detail, Hash: e.Hash, PreviousHash: e.PreviousHash,
		})
		seq = e.Seq
	}
	if len(list) == size || damaged != nil { // the next page tells of the damage
		resp.NextPageToken = strconv.FormatUint(seq, 10)
	}
	return resp, nil
}

// VerifyAudit implements signerv1.AdminServiceServer.
func (a *Admin) VerifyAudit(ctx context.Context, _ *signerv1.VerifyAuditRequest) (*signerv1.VerifyAuditResponse, error) {
	var v audit.Verifier
	if a.cfg.AuditHead != nil { // asked first: what is appended meanwhile does no harm
		heads, err := a.cfg.AuditHead.Heads(ctx)
		if err != nil {
			return nil, err
		}
		v.Expect(heads...)
	}
	bad := func(err error) (*signerv1.VerifyAuditResponse, error) {
		return &signerv1.VerifyAuditResponse{Entries: v.Entries, Head: v.Head, FirstBad: v.Entries + 1, Problem: err.Error()}, nil
	}
	for {
		list, err := a.cfg.Store.Audit(ctx, v.Entries, adminMaxPage)
		var damaged *audit.DamagedError
		if err != nil && !errors.As(err, &damaged) {
			return nil, err
		}
		for _, e := range list {
			if err := v.Add(e); err != nil {
				return bad(err)
			}
		}
		switch {
		case damaged != nil && damaged.Seq == v.Entries+1:
			return bad(damaged)
		case damaged != nil: // and something is missing before it
			return bad(v.Add(audit.Entry{Seq: damaged.Seq}))
		case len(list) < adminMaxPage:
			if err := v.End(); err != nil {
				return bad(err)
			}
			return &signerv1.VerifyAuditResponse{Ok: true, Entries: v.Entries, Head: v.Head}, nil
		}
	}
}

// AuditHead keeps the audit log's head where it outlives the store, so that a store
// that went back, or whose newest entries were deleted, is noticed.
type AuditHead interface {
	// Record records the store's newest entry unless a newer one is recorded.
	Record(ctx context.Context) error
	// Heads returns entries that the log must have.
	Heads(ctx context.Context) ([]audit.Head, error)
}

// NotDurableHeader is the header, on gRPC and REST, of an admin answer whose act stands
// but could still be lost: the copies of the store have not acknowledged it, or it is not
// yet recorded in custody. Its value says what that means and what to do.
const NotDurableHeader = "pact-not-durable"

// notDurable sets the header. That fails only where no client waits.
func notDurable(ctx context.Context, what string) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(NotDurableHeader, what))
}

// stands makes nothing of the error of an act that the store has done and its copies
// have not acknowledged, but tells the caller and the log.
func (a *Admin) stands(ctx context.Context, err error) error {
	if !errors.Is(err, killswitch.ErrUnacknowledged) {
		return err
	}
	a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "an act is not acknowledged by the store's copies", slog.Any("error", err))
	notDurable(ctx, "It is done, but the copies of the store have not acknowledged it: if the store's master fails now they lose it. Repeat it when they are back, or look whether it is still there.")
	return nil
}

// recordHead records an act's audit entry in custody. The act stands also without
// that; the log and, if it succeeded, the caller are told.
func (a *Admin) recordHead(ctx context.Context, fullMethod string, succeeded bool) {
	method := fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
	if a.cfg.AuditHead == nil || adminRoles[method] == RoleViewer {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.KillParams.Custody)
	defer cancel()
	err := a.cfg.AuditHead.Record(call)
	if err == nil {
		return
	}
	a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the audit log's head is not yet recorded in custody; that is done once custody answers, or at the next start",
		slog.String("method", method), slog.Any("error", err))
	if succeeded {
		notDurable(ctx, "It is done, but not yet recorded in custody: if the store went back now, nobody would notice that it lacks this. That is done once custody answers, or at the next start; pactctl state status tells.")
	}
}
