package signer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Kill implements signerv1.AdminServiceServer.
func (a *Admin) Kill(ctx context.Context, req *signerv1.KillRequest) (*signerv1.KillResponse, error) {
	scope, err := a.scope(req.GetScope(), a.issuer)
	if err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, true); err != nil {
		return nil, err
	}
	lasts, err := adminDuration("for", req.For, adminMaxDuration)
	if err != nil {
		return nil, err
	}
	if req.WithdrawKeys && scope.Kind != killswitch.All && scope.Kind != killswitch.Issuer {
		return nil, adminInvalid("withdraw_keys", "goes only with scope kind all or issuer, not %s", scope.Kind)
	}
	e := killswitch.Entry{Scope: scope, Reason: req.Reason, Actor: adminCaller(ctx).Name}
	if lasts > 0 {
		now, err := a.cfg.Store.Now(ctx)
		if err != nil {
			return nil, err
		}
		e.Expires = now.Add(lasts)
	}
	// From here on the operator's leaving stops nothing.
	ctx = context.WithoutCancel(ctx)
	res, err := a.cfg.Switch.Kill(ctx, e)
	if err != nil {
		return nil, adminSwitchError(err)
	}
	resp := &signerv1.KillResponse{
		Entry:            killEntry(res.Entry),
		Replicas:         res.Replicas,
		DurableInCustody: res.Durable,
	}
	until := res.Entry.Time
	for _, i := range a.covered(scope) {
		until = adminLatest(until, res.Entry.Time.Add(a.cfg.KillParams.Bound()+max(i.TokenTTL, a.cfg.LongestTTL)+a.cfg.AcceptSlack))
	}
	if note := a.unknownTarget(ctx, scope); note != "" {
		resp.Notes = append(resp.Notes, note)
	}
	if res.Unacknowledged != nil {
		a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a kill is not acknowledged by the store's copies", slog.String("entry", res.Entry.ID), slog.Any("error", res.Unacknowledged))
		resp.Notes = append(resp.Notes, adminUnacknowledged("The switch is thrown", res.Durable))
	}
	if !res.Durable {
		a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a kill is not yet durable in custody", slog.String("entry", res.Entry.ID), slog.Any("error", res.NotDurable))
		resp.Notes = append(resp.Notes, adminNotDurable("The switch is on", res.NotDurable))
	}
	if req.WithdrawKeys {
		until = a.withdraw(ctx, scope, req.Reason, until, resp)
	}
	resp.TokensAcceptedUntil = adminStamp(until)
	return resp, nil
}

// adminUnacknowledged tells an operator what an act means that the store's copies
// have not acknowledged.
func adminUnacknowledged(what string, durable bool) string {
	text := what + ", but the copies of the store have not acknowledged it: if the store's master fails now they lose it"
	if durable {
		return text + ". Custody has it, and replicas put it back from there. It is effective only when the store has it to stay; waiting for that goes on by itself."
	}
	return text + ", and custody does not have it either. Wait until it is effective, or repeat it."
}

// adminNotDurable tells an operator why custody does not have an act, and what to do.
func adminNotDurable(what string, err error) string {
	const until = " Until then do not lose the store."
	var full *killswitch.FullError
	switch {
	case errors.As(err, &full):
		return "Not yet durable in custody: its record of the switch is full. " + what + ", and is saved there once other entries are lifted that are not needed any more (pactctl resume)." + until
	case errors.Is(err, custody.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "Not yet durable in custody: custody is away. " + what + ", and is saved there when custody is back." + until
	}
	return fmt.Sprintf("Not yet durable in custody, which refuses it: %s. %s, and is tried again; it needs custody put right.%s", adminShorten(adminMessage(err), 300), what, until)
}

// issuerOfEntry is an issuer that entries may have been thrown for: one that is not
// configured any more too, for nothing else would lift them. An entry must be named by
// its id, so that a mistyped issuer lifts nothing.
func (a *Admin) issuerOfEntry(url string) (Issuer, error) {
	if url == "" {
		return a.issuer(url)
	}
	return Issuer{URL: url}, adminText("issuer", url, adminMaxIssuer, true)
}

// scope checks a request's scope, whose issuer is one that issuer knows.
func (a *Admin) scope(s *signerv1.Scope, issuer func(url string) (Issuer, error)) (killswitch.Scope, error) {
	if s == nil {
		return killswitch.Scope{}, adminInvalid("scope", "is required")
	}
	scope := killswitch.Scope{Kind: killswitch.Kind(s.Kind)}
	switch scope.Kind {
	case killswitch.All:
		if s.Value != "" || s.Issuer != "" {
			return scope, adminInvalid("scope", "kind all takes no value and no issuer")
		}
		return scope, nil
	case killswitch.Issuer:
		if s.Value == "" || s.Issuer != "" {
			return scope, adminInvalid("scope.value", "kind issuer takes the issuer's URL as its value, and no issuer")
		}
		i, err := issuer(s.Value)
		scope.Issuer = i.URL
		return scope, err
	case killswitch.Audience, killswitch.Subject, killswitch.Device, killswitch.Credential:
	default:
		return scope, adminInvalid("scope.kind", "%q is unknown: all, issuer, audience, subject, device or credential", adminShorten(s.Kind, 32))
	}
	i, err := issuer(s.Issuer)
	if err != nil {
		return scope, err
	}
	scope.Issuer, scope.Value = i.URL, s.Value
	if scope.Kind == killswitch.Device {
		return scope, adminThumbprint("scope.value", s.Value)
	}
	return scope, adminText("scope.value", s.Value, 256, true)
}

// covered are the issuers that a scope touches.
func (a *Admin) covered(scope killswitch.Scope) []Issuer {
	if scope.Kind == killswitch.All {
		return a.cfg.Issuers
	}
	return []Issuer{a.issuers[scope.Issuer]}
}

// unknownTarget says that a scope names something that is not there: the kill
// stands, but the operator may have mistyped. A store that cannot tell says nothing.
func (a *Admin) unknownTarget(ctx context.Context, s killswitch.Scope) string {
	var err error
	switch s.Kind {
	case killswitch.Device:
		_, err = a.cfg.Store.Device(ctx, s.Issuer, s.Value)
	case killswitch.Credential:
		_, err = a.cfg.Store.Credential(ctx, s.Issuer, s.Value)
	case killswitch.Audience:
		var list []Audience
		list, err = a.cfg.Store.Audiences(ctx, s.Issuer)
		if err == nil && !slices.ContainsFunc(list, func(x Audience) bool { return x.Audience == s.Value }) {
			err = ErrNotFound
		}
	}
	if !errors.Is(err, ErrNotFound) {
		return ""
	}
	return fmt.Sprintf("No %s %s is known to issuer %s: is it mistyped? The switch is thrown all the same.", s.Kind, s.Value, s.Issuer)
}

// withdraw revokes the keys of every issuer in scope and publishes fresh ones. A
// failure is told in the response: the kill stands.
func (a *Admin) withdraw(ctx context.Context, scope killswitch.Scope, reason string, until time.Time, resp *signerv1.KillResponse) time.Time {
	var latest time.Time
	for _, i := range a.covered(scope) {
		accepted, err := a.withdrawIssuer(ctx, i, reason)
		if err != nil {
			err = a.failure(ctx, "Kill", err)
			resp.NotWithdrawn = append(resp.NotWithdrawn, i.URL)
			resp.Notes = append(resp.Notes, fmt.Sprintf("The keys of %s were NOT withdrawn: %s. Do it with pactctl rotate --emergency --compromised KID.", i.URL, adminMessage(err)))
			latest = until
			continue
		}
		resp.Notes = append(resp.Notes, fmt.Sprintf("The keys of %s are withdrawn. A verifier that cached them accepts their tokens until %s at the latest; a fresh key is published.", i.URL, adminClock(accepted)))
		latest = adminLatest(latest, accepted)
	}
	if latest.Before(until) {
		return latest
	}
	return until // tokens expire whatever verifiers have cached
}

// WaitKill implements signerv1.AdminServiceServer.
func (a *Admin) WaitKill(req *signerv1.WaitKillRequest, out grpc.ServerStreamingServer[signerv1.Barrier]) error {
	if req.Epoch == 0 {
		return adminInvalid("epoch", "is required: it is in the answer to the kill")
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	_, err := a.cfg.Switch.Wait(ctx, req.Epoch, func(b killswitch.Barrier) {
		// Before it is effective EffectiveAt is when it will be, whoever stays silent.
		msg := &signerv1.Barrier{Epoch: b.Epoch, Effective: b.Effective, EffectiveAt: adminStamp(b.At), Confirmed: b.Confirmed, Silent: b.Silent}
		if b.Unsettled != nil {
			msg.Unsettled = b.Unsettled.Error()
		}
		if err := out.Send(msg); err != nil {
			cancel(err)
		}
	})
	if errors.Is(err, killswitch.ErrUnknownEpoch) {
		return adminNotFound("epoch: nothing was thrown or lifted in epoch %d: see the epochs in pactctl kill status --history", req.Epoch)
	}
	return err
}

// KillStatus implements signerv1.AdminServiceServer.
func (a *Admin) KillStatus(ctx context.Context, req *signerv1.KillStatusRequest) (*signerv1.KillStatusResponse, error) {
	state, err := a.cfg.Switch.History(ctx)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.KillStatusResponse{Epoch: state.Epoch}
	entries := state.Live()
	if req.History {
		entries = state.Entries
		for _, r := range state.Resumes {
			resp.Resumes = append(resp.Resumes, &signerv1.KillResume{
				EntryIds: r.Entries, Reason: r.Reason, Actor: r.Actor, Time: adminStamp(r.Time), Epoch: r.Epoch,
			})
		}
	}
	for _, e := range entries {
		resp.Entries = append(resp.Entries, killEntry(e))
	}
	return resp, nil
}

// Resume implements signerv1.AdminServiceServer.
func (a *Admin) Resume(ctx context.Context, req *signerv1.ResumeRequest) (*signerv1.ResumeResponse, error) {
	scope, err := a.scope(req.GetScope(), a.issuerOfEntry)
	if err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, true); err != nil {
		return nil, err
	}
	if len(req.EntryIds) == 0 {
		return nil, adminInvalid("entry_ids", "is required: name the entries to lift, as KillStatus lists them")
	}
	ctx = context.WithoutCancel(ctx)
	res, err := a.cfg.Switch.Resume(ctx, killswitch.ResumeRequest{
		Scope: scope, EntryIDs: req.EntryIds, Reason: req.Reason, Actor: adminCaller(ctx).Name,
	})
	if err != nil {
		return nil, adminSwitchError(err)
	}
	if res.Unacknowledged != nil {
		a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a resume is not acknowledged by the store's copies", slog.Any("entries", res.Resume.Entries), slog.Any("error", res.Unacknowledged))
		notDurable(ctx, adminUnacknowledged("The entries are lifted", res.Durable))
	}
	if !res.Durable {
		a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "a resume is not yet durable in custody", slog.Any("entries", res.Resume.Entries), slog.Any("error", res.NotDurable))
		if res.Unacknowledged == nil {
			notDurable(ctx, adminNotDurable("What is lifted stays lifted", res.NotDurable))
		}
	}
	return &signerv1.ResumeResponse{Epoch: res.Resume.Epoch, EntryIds: res.Resume.Entries, DurableInCustody: res.Durable}, nil
}

// adminSwitchError puts a refusal of the switch into words.
func adminSwitchError(err error) error {
	var invalid *killswitch.InvalidError
	var resume *killswitch.ResumeError
	switch {
	case errors.As(err, &invalid):
		return adminRefuse(codes.InvalidArgument, "INVALID_REQUEST", nil, "%s", invalid.Err)
	case errors.Is(err, killswitch.ErrChanged):
		return adminRefuse(codes.Aborted, "CHANGED", nil, "the switch was changed at the same time: look again and repeat")
	case !errors.As(err, &resume):
		return err
	}
	meta := map[string]string{}
	if len(resume.Unnamed) > 0 {
		ids := make([]string, len(resume.Unnamed))
		for i, e := range resume.Unnamed {
			ids[i] = e.ID
		}
		meta["entries"] = strings.Join(ids, " ")
		return adminRefuse(codes.FailedPrecondition, "ENTRIES_NOT_SHOWN", meta,
			"nothing was lifted: the scope also holds %s, which entry_ids does not name; look at them and repeat", strings.Join(ids, ", "))
	}
	meta["entries"] = strings.Join(resume.NotLive, " ")
	return adminRefuse(codes.NotFound, "NOT_FOUND", meta,
		"nothing was lifted: %s is not in force in this scope; see pactctl kill status", strings.Join(resume.NotLive, ", "))
}

// killEntry is an entry as messages carry it.
func killEntry(e killswitch.Entry) *signerv1.KillEntry {
	s := &signerv1.Scope{Kind: string(e.Scope.Kind), Value: e.Scope.Value, Issuer: e.Scope.Issuer}
	if e.Scope.Kind == killswitch.Issuer {
		s.Value, s.Issuer = e.Scope.Issuer, ""
	}
	return &signerv1.KillEntry{
		Id: e.ID, Scope: s, Reason: e.Reason, Actor: e.Actor,
		Time: adminStamp(e.Time), Expires: adminStamp(e.Expires), Epoch: e.Epoch,
	}
}

func adminLatest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
