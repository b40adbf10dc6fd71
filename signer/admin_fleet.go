package signer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// FleetStatus implements signerv1.AdminServiceServer.
func (a *Admin) FleetStatus(ctx context.Context, _ *signerv1.FleetStatusRequest) (*signerv1.FleetStatusResponse, error) {
	now, err := a.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	state, err := a.cfg.Switch.History(ctx)
	if err != nil {
		return nil, err
	}
	replicas, err := a.replicas(ctx)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.FleetStatusResponse{
		Epoch: state.Epoch, Version: a.cfg.Version, Replica: a.cfg.Replica, Time: adminStamp(now),
	}
	for _, e := range state.Live() {
		resp.Kills = append(resp.Kills, killEntry(e))
	}
	for _, r := range replicas {
		if r.Epoch == killswitch.Gone {
			continue
		}
		if r.Replica == a.cfg.Replica { // as it is now, not as it was at its last beat
			r.Ready = a.unready() == nil
		}
		resp.Replicas = append(resp.Replicas, &signerv1.Replica{
			Id: r.Replica, Version: r.Version, Epoch: r.Epoch, Seen: adminStamp(r.Seen), Revisions: r.Revisions, Ready: r.Ready,
			ClockOffset: durationpb.New(r.Time.Sub(r.Seen).Round(time.Millisecond)),
			PermitUntil: adminStamp(r.Seen.Add(a.cfg.KillParams.Permit)),
		})
	}
	for _, i := range a.cfg.Issuers {
		s, err := a.issuerStatus(ctx, i)
		if err != nil {
			return nil, err
		}
		resp.Issuers = append(resp.Issuers, s)
	}
	return resp, nil
}

// replicas are those that count as live.
func (a *Admin) replicas(ctx context.Context) ([]killswitch.Replica, error) {
	return a.cfg.Fleet.Replicas(ctx, a.cfg.KillParams.Registered)
}

func (a *Admin) issuerStatus(ctx context.Context, i Issuer) (*signerv1.IssuerStatus, error) {
	s := &signerv1.IssuerStatus{
		Issuer: i.URL, TokenTtl: durationpb.New(i.TokenTTL), Enrolment: string(i.mode()),
		ScheduleRevision: i.Keys.Revision(), SignerUrl: i.URL,
	}
	if len(i.SignerURLs) > 0 {
		s.SignerUrl = i.SignerURLs[0]
	}
	var err error
	if s.Devices, s.Credentials, err = a.cfg.Store.Counts(ctx, i.URL); err != nil {
		return nil, err
	}
	audiences, err := a.cfg.Store.Audiences(ctx, i.URL)
	if err != nil {
		return nil, err
	}
	s.Audiences = uint64(len(audiences))
	a.keyStatus(i, s)
	switch why := a.ready(i); {
	case why == nil:
		s.Ready = true
	default:
		s.Why = adminMessage(why)
	}
	return s, nil
}

// unready says why this replica should get no traffic.
func (a *Admin) unready() error {
	if a.cfg.Ready == nil {
		return nil
	}
	return a.cfg.Ready()
}

// ready says why this replica cannot sign for an issuer now.
func (a *Admin) ready(i Issuer) error {
	if _, err := a.cfg.Guard.Check(killswitch.Target{Issuer: i.URL}); err != nil {
		var killed *killswitch.KilledError
		if errors.As(err, &killed) {
			return err
		}
		return errors.Join(err, a.cfg.Guard.Ready())
	}
	return cmp.Or(i.Keys.Ready(), a.unready())
}
