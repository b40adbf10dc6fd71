package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/sandbox"
)

// admin works on the signer as its operator.
func (d *demo) admin(ctx context.Context, do func(context.Context, *operator) error) error {
	info := d.signer.Info()
	return d.app.operate(ctx, &target{server: info.Admin, tokenFile: info.AdminTokenFile, issuer: d.issuer}, do)
}

// keys are the states of the signer's keys, as its operator sees them.
func (d *demo) keys(ctx context.Context) (map[string]string, error) {
	states := map[string]string{}
	err := d.admin(ctx, func(ctx context.Context, s *operator) error {
		resp, err := s.ListKeys(ctx, &signerv1.ListKeysRequest{Issuer: d.issuer})
		for _, k := range resp.GetKeys() {
			states[k.Kid] = k.State
		}
		return err
	})
	return states, err
}

func (d *demo) rotate(ctx context.Context) (string, error) {
	var plan *signerv1.RotateKeyResponse
	err := d.admin(ctx, func(ctx context.Context, s *operator) (err error) {
		plan, err = s.RotateKey(ctx, &signerv1.RotateKeyRequest{Issuer: d.issuer, Reason: "demo"})
		return err
	})
	if err != nil {
		return "", err
	}
	d.newKey = plan.Kid
	for _, e := range plan.Timeline {
		if e.Event == "sign" && e.Kid == plan.Kid {
			d.switchOver = e.Time.AsTime()
		}
		d.screen.note("%s  %-8s key %s", e.Time.AsTime().In(d.app.zone).Format("15:04:05"), e.Event, short(e.Kid))
	}
	published, err := d.keySet(ctx)
	if err != nil {
		return "", err
	}
	keys, err := d.keys(ctx)
	if err != nil {
		return "", err
	}
	lead := time.Until(d.switchOver)
	return fmt.Sprintf("a new key is published, and signs in %.0fs", lead.Seconds()), d.prove(
		claim{"both keys are published", len(published) == 2 && published[d.oldKey] && published[d.newKey]},
		claim{"the old key signs on", keys[d.oldKey] == "signing" && keys[d.newKey] == "published"},
		claim{"there is time for every verifier to read it", lead > 0},
	)
}

// signingKey is the key that signs by the clock.
func (d *demo) signingKey() string {
	if d.newKey != "" && !time.Now().Before(d.switchOver) {
		return d.newKey
	}
	return d.oldKey
}

func (d *demo) before(ctx context.Context) (string, error) {
	published, err := d.keySet(ctx)
	if err != nil {
		return "", err
	}
	if err := d.ask(ctx, d.oldKey); err != nil {
		return "", err
	}
	return fmt.Sprintf("key %s still signs; receipt verified", short(d.oldKey)), d.prove(
		claim{"the next key is published already", published[d.newKey]},
		claim{"it was before the switch-over", d.wire.last().arrived.Before(d.switchOver)},
	)
}

func (d *demo) after(ctx context.Context) (string, error) {
	if err := d.awaitSwitchOver(ctx); err != nil {
		return "", err
	}
	how, err := d.startAnew(ctx)
	if err != nil {
		return "", err
	}
	if err := d.ask(ctx, d.newKey); err != nil {
		return "", err
	}
	keys, err := d.keys(ctx)
	if err != nil {
		return "", err
	}
	published, err := d.keySet(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("key %s signs now; %s; receipt verified", short(d.newKey), how), d.prove(
		claim{"the new key signs", keys[d.newKey] == "signing"},
		claim{"the old one stays for the tokens that are out", keys[d.oldKey] == "retiring" && published[d.oldKey]},
	)
}

// startAnew sees to it that the agent holds no token, so that the next one is fresh,
// and says how.
func (d *demo) startAnew(ctx context.Context) (string, error) {
	if err := d.closeAgent(); err != nil {
		return "", err
	}
	if err := d.openAgent(ctx); err != nil {
		return "", err
	}
	if d.remote == "" { // a program that starts; everything else it must find in its store
		return "agent restarted", nil
	}
	if _, err := d.agent.Enroll(ctx, d.owner(), agent.EnrollRequest{SignerURL: d.issuer}); err != nil {
		return "", err
	}
	return "enrolled anew", nil
}

// awaitSwitchOver waits until the new key signs.
func (d *demo) awaitSwitchOver(ctx context.Context) error {
	for {
		left := time.Until(d.switchOver)
		if left < -demoPause { // both read one clock, but not at once
			return nil
		}
		d.screen.busy(fmt.Sprintf("waits %.1fs for the switch-over", max(left.Seconds(), 0)))
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func (d *demo) kill(ctx context.Context) (string, error) {
	var thrown *signerv1.KillResponse
	var barrier *signerv1.Barrier
	err := d.admin(ctx, func(ctx context.Context, s *operator) (err error) {
		if thrown, err = s.Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "all"}, Reason: "demo"}); err != nil {
			return err
		}
		barrier, _, err = waitKill(ctx, d.app, s, thrown.Entry.Epoch, false)
		return err
	})
	if err != nil {
		return "", err
	}
	n, sent := d.turns.count(), d.wire.count()
	status, err := d.status(ctx)
	if err != nil {
		return "", err
	}
	r, err := d.send(ctx, agent.SendRequest{
		Business: d.card(sandbox.LarklineID), Message: askFlights, Effect: "inspect", Scopes: []string{readFlights},
		Conversation: d.conversation,
	})
	if err != nil {
		return "", err
	}
	if err := ended(r, agent.StatusBlocked, agent.ReasonSignerDisabled); err != nil {
		return "", err
	}
	d.screen.note("epoch %d: %s confirmed, %d silent", barrier.Epoch, plural(len(barrier.Confirmed), "replica"), len(barrier.Silent))
	took := when(barrier.EffectiveAt).Sub(when(thrown.Entry.Time)).Round(time.Millisecond)
	return fmt.Sprintf("effective in %s; status disabled; a send is refused", max(took, 0)), d.prove(
		claim{"the switch is effective, and every replica says so", barrier.Effective && len(barrier.Confirmed) == 1 && len(barrier.Silent) == 0},
		claim{"custody keeps it too", thrown.DurableInCustody},
		claim{"status says disabled", status.SignerDisabled && !status.Ready},
		claim{"no message reaches the business", d.turns.count() == n && d.wire.count() == sent},
	)
}

func (d *demo) resume(ctx context.Context) (string, error) {
	var left []*signerv1.KillEntry
	err := d.admin(ctx, func(ctx context.Context, s *operator) error {
		status, err := s.KillStatus(ctx, &signerv1.KillStatusRequest{})
		if err != nil {
			return err
		}
		var ids []string
		for _, e := range status.Entries {
			ids = append(ids, e.Id)
		}
		if _, err = s.Resume(ctx, &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "all"}, EntryIds: ids, Reason: "demo"}); err != nil {
			return err
		}
		status, err = s.KillStatus(ctx, &signerv1.KillStatusRequest{})
		left = status.GetEntries()
		return err
	})
	if err != nil {
		return "", err
	}
	if err := d.awaitReady(ctx); err != nil {
		return "", err
	}
	if err := d.ask(ctx, d.newKey); err != nil {
		return "", err
	}
	return "sends go out again; receipt verified", d.prove(
		claim{"no switch is left on", len(left) == 0},
	)
}

// awaitReady asks for the status until nothing stands in the way: a resume is
// known to a replica with its next permit.
func (d *demo) awaitReady(ctx context.Context) error {
	for {
		status, err := d.agent.Status(ctx, d.owner())
		if err != nil || status.Ready {
			return err
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("the signer still says %s: %w", status.Reason, err)
		}
	}
}

func (d *demo) audit(ctx context.Context) (string, error) {
	var chain *signerv1.VerifyAuditResponse
	err := d.admin(ctx, func(ctx context.Context, s *operator) (err error) {
		chain, err = s.VerifyAudit(ctx, &signerv1.VerifyAuditRequest{})
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d entries of the signer's log, in one unbroken chain", chain.Entries), d.prove(
		claim{"the chain is whole: " + chain.Problem, chain.Ok},
		claim{"it holds register, audience, rotation, kill and resume", chain.Entries >= 5},
	)
}
