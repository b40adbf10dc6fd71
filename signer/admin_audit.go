package signer

import (
	"context"
	"strconv"

	"github.com/pactsigner/pactsigner/internal/audit"
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
	if err != nil {
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
	if len(list) == size {
		resp.NextPageToken = strconv.FormatUint(seq, 10)
	}
	return resp, nil
}

// VerifyAudit implements signerv1.AdminServiceServer.
func (a *Admin) VerifyAudit(ctx context.Context, _ *signerv1.VerifyAuditRequest) (*signerv1.VerifyAuditResponse, error) {
	var v audit.Verifier
	for {
		list, err := a.cfg.Store.Audit(ctx, v.Entries, adminMaxPage)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if err := v.Add(e); err != nil {
				return &signerv1.VerifyAuditResponse{Entries: v.Entries, Head: v.Head, FirstBad: v.Entries + 1, Problem: err.Error()}, nil
			}
		}
		if len(list) < adminMaxPage {
			return &signerv1.VerifyAuditResponse{Ok: true, Entries: v.Entries, Head: v.Head}, nil
		}
	}
}
