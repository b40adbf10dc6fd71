package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// The origins that the probe's audiences are registered for. Nobody can have them
// (RFC 2606).
const (
	probeOrigin       = "https://probe.invalid"
	probeKilledOrigin = "https://killed.probe.invalid"
)

// probeSetup is what a probe needs of a signer.
type probeSetup struct {
	app              *app
	audience, killed string
	dryRun, remove   bool
	steps            []setupStep
}

// setupStep is one thing that is to be as it must, and was or is made so.
type setupStep struct {
	Name string `json:"name"`
	Done string `json:"done"` // what was done: nothing, registered, thrown, lifted, forgotten; or would be
}

// newProbeSetupCmd makes what a probe needs, once.
func newProbeSetupCmd(a *app, t *target) *cobra.Command {
	s := &probeSetup{app: a}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make the audiences that pactctl probe asks for, once",
		Long: `Register two audiences of nobody's and throw a kill switch for good on one of
them, so that a probe can prove what works and what is refused without changing
anything. Needs an admin token of role admin. Repeating it makes what is
missing.

The standing kill is listed apart by kill status and fleet status, and stays
when resume --all lifts everything else; resume --audience lifts it. That is so
for an audience that begins with urn:pact:probe; any other --killed-audience is
told and lifted as every kill is. The audience that is not killed is listed by
every caller's status, as that of https://probe.invalid.

--remove lifts the kill and forgets both.`,
		Example: `  pactctl probe setup --issuer https://pa.example.com --dry-run
  pactctl probe setup --issuer https://pa.example.com
  pactctl probe setup --issuer https://pa.example.com --remove`,
		Args: cobra.NoArgs,
	}
	audiences(cmd, &s.audience, &s.killed)
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVar(&s.remove, "remove", false, "undo it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := notEmpty(cmd, "audience", "killed-audience"); err != nil {
			return err
		}
		if s.audience == s.killed {
			return usagef("--killed-audience %s is the audience that must work", s.killed)
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, o *operator) error {
			do := s.make
			if s.remove {
				do = s.undo
			}
			err := do(ctx, o)
			return s.end(err)
		})
	}
	return cmd
}

// registered are the probe's origins and what they are registered for.
func (s *probeSetup) registered(ctx context.Context, o *operator) (map[string]string, error) {
	list, err := o.ListAudiences(ctx, &signerv1.ListAudiencesRequest{Issuer: o.issuer})
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, x := range list.Audiences {
		if x.Origin == probeOrigin || x.Origin == probeKilledOrigin {
			m[x.Origin] = x.Audience
		}
	}
	return m, nil
}

// kills are the entries in force for an audience, those that end by themselves too.
func kills(ctx context.Context, o *operator, audience string) (list []*signerv1.KillEntry, err error) {
	status, err := o.KillStatus(ctx, &signerv1.KillStatusRequest{})
	if err != nil {
		return nil, err
	}
	issuer := o.issuer
	if issuer == "" { // the only one
		fleet, err := o.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
		if err != nil {
			return nil, err
		}
		if len(fleet.Issuers) == 1 {
			issuer = fleet.Issuers[0].Issuer
		}
	}
	for _, e := range status.Entries {
		if e.Scope.GetKind() == "audience" && e.Scope.Value == audience && e.Scope.Issuer == issuer {
			list = append(list, e)
		}
	}
	return list, nil
}

// step notes what is done, or would be; it is done unless this is a dry run.
func (s *probeSetup) step(name, done string, do func() error) error {
	if do != nil && !s.dryRun {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	s.steps = append(s.steps, setupStep{name, done})
	return nil
}

// make registers the audiences and throws the switch, as far as that is not so.
func (s *probeSetup) make(ctx context.Context, o *operator) error {
	has, err := s.registered(ctx, o)
	if err != nil {
		return err
	}
	for _, x := range [][2]string{{probeOrigin, s.audience}, {probeKilledOrigin, s.killed}} {
		name := "audience " + x[1]
		switch has[x[0]] {
		case x[1]:
			err = s.step(name, "nothing", nil)
		case "":
			err = s.step(name, "registered", func() error {
				_, err := o.SetAudience(ctx, &signerv1.SetAudienceRequest{Issuer: o.issuer, Origin: x[0], Audience: x[1], Reason: "pactctl probe setup"})
				return err
			})
		default:
			err = fmt.Errorf("%s has the audience %s: remove that setup first, with its --audience and --killed-audience", x[0], has[x[0]])
		}
		if err != nil {
			return err
		}
	}
	list, err := kills(ctx, o, s.killed)
	if err != nil {
		return err
	}
	name := "kill switch for " + s.killed
	if slices.ContainsFunc(list, func(e *signerv1.KillEntry) bool { return e.Expires == nil }) {
		return s.step(name, "nothing", nil)
	}
	return s.step(name, "thrown", func() error {
		resp, err := o.Kill(ctx, &signerv1.KillRequest{Scope: &signerv1.Scope{Kind: "audience", Value: s.killed, Issuer: o.issuer}, Reason: signer.ProbeReason})
		if err == nil {
			_, _, err = waitKill(ctx, s.app, o, resp.Entry.Epoch, false)
		}
		return err
	})
}

// undo lifts the kill and forgets the audiences, as far as they are there.
func (s *probeSetup) undo(ctx context.Context, o *operator) error {
	has, err := s.registered(ctx, o)
	if err != nil {
		return err
	}
	for _, x := range [][2]string{{probeOrigin, s.audience}, {probeKilledOrigin, s.killed}} {
		if now := has[x[0]]; now != "" && now != x[1] {
			return fmt.Errorf("%s has the audience %s: name it with --audience or --killed-audience", x[0], now)
		}
	}
	list, err := kills(ctx, o, s.killed)
	if err != nil {
		return err
	}
	if !s.dryRun {
		if err := s.app.confirm(ctx, "End the probe's kill and forget its audiences? pactctl probe fails then."); err != nil {
			return err
		}
	}
	// A kill of a real audience of that name is somebody's who meant it.
	if _, ours := has[probeKilledOrigin]; !ours && len(list) > 0 {
		return fmt.Errorf("audience %s is killed and is not the probe's: lift that with pactctl resume", s.killed)
	}
	name := "kill switch for " + s.killed
	if len(list) == 0 {
		err = s.step(name, "nothing", nil)
	} else {
		err = s.step(name, "lifted", func() error {
			req := &signerv1.ResumeRequest{Scope: &signerv1.Scope{Kind: "audience", Value: s.killed, Issuer: o.issuer}, Reason: "pactctl probe setup --remove"}
			for _, e := range list {
				req.EntryIds = append(req.EntryIds, e.Id)
			}
			_, err := o.Resume(ctx, req)
			return err
		})
	}
	for _, x := range [][2]string{{probeKilledOrigin, s.killed}, {probeOrigin, s.audience}} {
		if err != nil {
			return err
		}
		name := "audience " + x[1]
		if has[x[0]] == "" {
			err = s.step(name, "nothing", nil)
			continue
		}
		err = s.step(name, "forgotten", func() error {
			_, err := o.RemoveAudience(ctx, &signerv1.RemoveAudienceRequest{Issuer: o.issuer, Origin: x[0], Reason: "pactctl probe setup --remove"})
			return err
		})
	}
	return err
}

// end prints what was done, also before an error.
func (s *probeSetup) end(err error) error {
	if err != nil && len(s.steps) == 0 {
		return err
	}
	printed := s.app.print(object{{"dryRun", s.dryRun}, {"steps", s.steps}}, func(p *printer) {
		would := ""
		if s.dryRun {
			would = "would be "
		}
		for _, x := range s.steps {
			said := would + x.Done
			if x.Done == "nothing" {
				said = "is as it must be"
			}
			p.say(0, "%s: %s", x.Name, said)
		}
		if err == nil && !s.dryRun && !s.remove {
			p.say(0, "Ready for: pactctl probe")
		}
	})
	if err != nil {
		return err
	}
	return printed
}
