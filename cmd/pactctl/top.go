package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

const (
	// lookTimeout bounds one look of pactctl top: then the picture is stale, and it
	// looks again.
	lookTimeout = 5 * time.Second
	// topAudit is how many of the newest audit entries are kept.
	topAudit = 20
)

// newTopCmd shows a fleet live.
func newTopCmd(a *app) *cobra.Command {
	interval := 2 * time.Second
	var count int
	cmd := &cobra.Command{
		Use:     "top",
		GroupID: groupOperator,
		Short:   "Watch the fleet live: switch, keys, replicas, rates",
		Long: `Watch the fleet live: what is stopped, which key of each issuer signs and when
that changes, every replica with its permit and its rates, the sign requests of
the last hour, and the newest entries of the audit log.

Keys: q quit, p pause, + and - longer and shorter interval, i next issuer, ?
help.
What is wrong has a mark beside its colour: ! or capital letters. If the signer
cannot be reached the last picture stays, marked STALE, until it can again.

Off a terminal it prints one picture as text; with -o json one line for each
look, with the members time, server, fleet, activity, keys and audit; a look
that failed has time and error alone. The first look must succeed.`,
		Example: `  pactctl top
  pactctl top --interval 10s --context prod
  pactctl top | head -3
  pactctl top -o json --count 1 | jq '.activity.replicas'`,
		Args: cobra.NoArgs,
	}
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.Flags().DurationVar(&interval, "interval", interval, "`TIME` between two looks, 1s to 1h")
	cmd.Flags().IntVar(&count, "count", 0, "end after `N` looks (0: off a terminal one as text, else no end)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < time.Second || interval > time.Hour {
			return usagef("--interval %s: say 1s to 1h", interval)
		}
		if count < 0 {
			return usagef("--count %d: say 1 or more, or 0 for no end", count)
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			w := &watcher{operator: s, now: a.now}
			switch {
			case a.output == "json":
				return a.topLines(ctx, w, interval, count, a.printPictureLine)
			case a.width == 0 || !a.person || os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "":
				return a.topLines(ctx, w, interval, max(count, 1), a.printPicture)
			}
			return a.topLive(ctx, w, interval, count)
		})
	}
	return cmd
}

// picture is a fleet as one look found it.
type picture struct {
	at     time.Time // when, by our clock
	server string
	fleet  *signerv1.FleetStatusResponse
	keys   []*signerv1.Key
	// activity is nil if the signer is of a version that tells none.
	activity *signerv1.GetActivityResponse
	// audit are the newest entries, the oldest of them first.
	audit []*signerv1.AuditEntry
}

// watcher looks at a fleet again and again.
type watcher struct {
	*operator
	now func() time.Time

	followed bool // audit has a beginning
	last     uint64
	audit    []*signerv1.AuditEntry
}

// look asks for everything at once.
func (w *watcher) look(ctx context.Context) (*picture, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	p := &picture{server: w.server}
	var all sync.WaitGroup
	var fleetErr, keysErr, activityErr, auditErr error
	all.Go(func() { p.fleet, fleetErr = w.FleetStatus(ctx, &signerv1.FleetStatusRequest{}) })
	all.Go(func() {
		var keys *signerv1.ListKeysResponse
		keys, keysErr = w.ListKeys(ctx, &signerv1.ListKeysRequest{})
		p.keys = keys.GetKeys()
	})
	all.Go(func() { p.activity, activityErr = w.GetActivity(ctx, &signerv1.GetActivityRequest{}) })
	all.Go(func() { auditErr = w.follow(ctx) })
	all.Wait()
	if older(activityErr) {
		p.activity, activityErr = nil, nil
	}
	if reason(auditErr) == "AUDIT_DAMAGED" { // pactctl audit verify is for that
		auditErr = nil
	}
	for _, err := range []error{fleetErr, keysErr, activityErr, auditErr} {
		if err != nil {
			return nil, err
		}
	}
	p.at, p.audit = w.now(), w.audit
	return p, nil
}

// older says whether the signer does not know the method yet.
func older(err error) bool {
	var call *callError
	return errors.As(err, &call) && call.status.Code() == codes.Unimplemented
}

// follow reads what the audit log has more than at the last time; at first it begins
// near its end.
func (w *watcher) follow(ctx context.Context) error {
	if !w.followed {
		state, err := w.GetState(ctx, &signerv1.GetStateRequest{})
		if err != nil {
			return err
		}
		if head := state.GetStoreHead().GetSeq(); head > topAudit {
			w.last = head - topAudit
		}
		w.followed = true
	}
	for {
		req := &signerv1.ListAuditRequest{PageSize: pageSize}
		if w.last > 0 {
			req.PageToken = strconv.FormatUint(w.last, 10)
		}
		resp, err := w.ListAudit(ctx, req)
		if err != nil {
			return err
		}
		for _, e := range resp.Entries {
			w.audit, w.last = append(w.audit, e), e.Seq
		}
		w.audit = append([]*signerv1.AuditEntry(nil), w.audit[max(0, len(w.audit)-topAudit):]...) // pictures keep theirs
		if resp.NextPageToken == "" {
			return nil
		}
	}
}

// topLines prints one picture after the other. The first look must succeed; what
// fails later may come back.
func (a *app) topLines(ctx context.Context, w *watcher, interval time.Duration, count int, print func(*picture, error) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		p, err := w.look(ctx)
		if ctx.Err() != nil || err != nil && n == 1 {
			return errors.Join(ctx.Err(), err)
		}
		if err == nil || a.output == "json" {
			err = print(p, err)
		} else {
			a.note("%s", err)
			err = nil
		}
		if err != nil || n == count {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// printPictureLine prints a look as one line of JSON.
func (a *app) printPictureLine(p *picture, failed error) error {
	var o object
	if failed != nil {
		o = object{{"time", a.now().UTC()}, {"error", oneLine(failed.Error())}}
	} else {
		keys := messageJSON(&signerv1.ListKeysResponse{Keys: p.keys})
		o = object{{"time", p.at.UTC()}, {"server", p.server}, {"fleet", messageJSON(p.fleet)}}
		if p.activity != nil {
			o = append(o, member{"activity", messageJSON(p.activity)})
		}
		o = append(o, keys...)
		o = append(o, member{"audit", messageJSON(&signerv1.ListAuditResponse{Entries: p.audit})[0].value})
	}
	b, err := json.Marshal(o, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", escaped(b))
	return err
}

// printPicture prints a look as text, whole.
func (a *app) printPicture(p *picture, _ error) error {
	out := a.printer(a.stdout)
	v := topView{picture: p, zone: a.zone, width: a.width}
	for _, l := range v.lines() {
		out.line("%s", l.plain())
	}
	return out.err
}

// topLive draws pictures until somebody quits.
func (a *app) topLive(ctx context.Context, w *watcher, interval time.Duration, count int) error {
	first, err := w.look(ctx)
	if err != nil {
		return err
	}
	m := newTopModel(ctx, w.look, first, a.now, a.zone, interval)
	m.count = count
	if w.issuer != "" {
		m.issuer = slices.IndexFunc(first.fleet.Issuers, func(i *signerv1.IssuerStatus) bool { return i.Issuer == w.issuer })
		if m.issuer < 0 {
			return usagef("--issuer %q is not one of the signer's: see pactctl fleet status", w.issuer)
		}
	}
	m.width, m.height = a.width, a.height
	end, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(a.stdin), tea.WithOutput(a.stdout), tea.WithoutSignalHandler()).Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("draw: %w", err)
	}
	if end, ok := end.(topModel); ok && end.interrupted {
		return &codedError{exitInterrupted, context.Canceled}
	}
	return nil
}
