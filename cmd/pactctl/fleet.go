package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newFleetCmd tells what is running.
func newFleetCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("fleet", "See what is running: issuers, replicas, switch")
	cmd.GroupID = groupOperator
	cmd.Example = `  pactctl fleet status`
	t := newTarget(cmd)
	cmd.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "Show issuers, replicas and what is stopped",
		Example: `  pactctl fleet status
  pactctl fleet status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				resp, err := s.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
				if err != nil {
					return err
				}
				var activity *signerv1.GetActivityResponse
				if a.output != "json" {
					if activity, err = s.GetActivity(ctx, &signerv1.GetActivityRequest{}); err != nil && !older(err) {
						return err
					}
				}
				return a.print(messageJSON(resp), func(p *printer) { printFleet(p, resp, activity) })
			})
		},
	})
	return cmd
}

// printFleet writes what is running; activity is nil if the signer tells none.
func printFleet(p *printer, f *signerv1.FleetStatusResponse, activity *signerv1.GetActivityResponse) {
	p.say(0, "Signer %s, replica %s, switch epoch %d", f.Version, f.Replica, f.Epoch)
	for _, i := range f.Issuers {
		p.line("")
		p.line("%s", i.Issuer)
		state := "yes"
		if !i.Ready {
			state = "no: " + i.Why
		}
		next := "none planned"
		if i.NextSignAt != nil {
			next = p.plan(i.NextSignAt)
		}
		for _, f := range [][2]string{
			{"ready", state},
			{"signer", i.SignerUrl},
			{"signs", fmt.Sprintf("%s with %s", i.Algorithm, or(i.SigningKid, "no key yet"))},
			{"next key", next},
			{"schedule", scheduleOf(f, i)},
			{"tokens", fmt.Sprintf("live %gs", i.TokenTtl.AsDuration().Seconds())},
			{"enrolment", i.Enrolment},
			{"holds", fmt.Sprintf("%s, %s, %s", plural(i.Devices, "device"), plural(i.Credentials, "credential"), plural(i.Audiences, "audience"))},
		} {
			p.labelled(fmt.Sprintf("  %-9s  ", f[0]), f[1])
		}
	}
	p.line("")
	var rows [][]string
	for _, r := range f.Replicas {
		ready := "yes"
		if !r.Ready {
			ready = "no"
		}
		rows = append(rows, []string{
			r.Id, r.Version, fmt.Sprint(r.Epoch), p.ago(when(r.Seen)), permitLeft(r, when(f.Time)),
			r.ClockOffset.AsDuration().Round(time.Millisecond).String(), ready,
		})
	}
	if len(rows) == 0 {
		p.line("No replica has reported.")
	} else {
		p.table([]string{"REPLICA", "VERSION", "EPOCH", "SEEN", "PERMIT", "CLOCK", "READY"}, rows)
	}
	for _, lost := range gone(f, activity) {
		p.say(0, "Gone without a word: %s.", lost)
	}
	printActivity(p, activity)
	p.line("")
	stops, standing := withoutProbe(f.Kills)
	if len(stops) == 0 {
		p.line("Nothing is stopped.")
	} else {
		p.line("Stopped:")
	}
	for _, e := range stops {
		printKillEntry(p, e)
	}
	printStanding(p, standing)
}

// scheduleOf is the revision of an issuer's key schedule, and who is behind it.
func scheduleOf(f *signerv1.FleetStatusResponse, i *signerv1.IssuerStatus) string {
	newest := i.ScheduleRevision
	for _, r := range f.Replicas {
		newest = max(newest, r.Revisions[i.Issuer])
	}
	text := fmt.Sprintf("revision %d", newest)
	for _, r := range f.Replicas {
		if has := r.Revisions[i.Issuer]; has < newest {
			text += fmt.Sprintf(", %s is behind at %d", r.Id, has)
		}
	}
	return text
}

// permitLeft is how long a replica may sign without asking the store again.
func permitLeft(r *signerv1.Replica, now time.Time) string {
	switch left := when(r.PermitUntil).Sub(now); {
	case r.PermitUntil == nil: // of an older signer
		return "-"
	case left <= 0:
		return "none"
	default:
		return fmt.Sprintf("%.1fs", left.Seconds())
	}
}

// printActivity writes what all replicas together do, and did in the last hour.
func printActivity(p *printer, a *signerv1.GetActivityResponse) {
	if a == nil {
		return
	}
	var signed, refused, failed float64
	for _, r := range a.Replicas {
		signed, refused, failed = signed+r.SignedRate, refused+r.RefusedRate, failed+r.FailedRate
	}
	var sum [3]uint64
	for _, m := range a.Minutes {
		sum[0], sum[1], sum[2] = sum[0]+m.Signed, sum[1]+m.Refused, sum[2]+m.Failed
	}
	p.line("")
	p.line("Sign requests  signed  %s/s, %d in %dm", perSecond(signed), sum[0], len(a.Minutes))
	p.line("              refused  %s/s, %d", perSecond(refused), sum[1])
	p.line("               failed  %s/s, %d", perSecond(failed), sum[2])
	for _, missing := range a.Missing {
		p.say(0, "Incomplete: %s.", missing)
	}
}
