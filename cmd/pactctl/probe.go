package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/adrg/xdg"
	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/config"
	"github.com/pactsigner/pactsigner/probe"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// exitProbe is the exit code of a probe by which a check failed.
const exitProbe = 4

// probeRunbook is where a person reads on.
const probeRunbook = "docs/runbooks/pact-signer-probe-failing.md"

// prober holds the flags of a probe.
type prober struct {
	app    *app
	target *target
	cfg    probe.Config

	signerCA, credential, state, enrollment string
	interval                                time.Duration
	metrics                                 string

	last map[string]probe.Outcome // of the round before, by check
}

// newProbeCmd asks a signer whether it does what it must, and refuses what it must.
func newProbeCmd(a *app) *cobra.Command {
	p := &prober{app: a}
	cmd := &cobra.Command{
		Use:     "probe",
		GroupID: groupOperator,
		Short:   "Prove that a signer signs, and refuses what it must",
		Long: `Prove from outside, as a client does, that a signer works: enrol, ask for a
token, verify it under the published key set. And that it refuses: an audience
that is not registered, a killed one, a used assertion, one for another call,
one that expired, one with alg none or a changed signature, an unknown
credential, a request with a member that does not belong. Each passes only on
exactly the refusal of the contract. With --replicas every replica's key set is
compared, with --server the schedule too; a disagreement fails only when it
lasts for --settle, since a change reaches replicas one after another.

An operator makes the audiences once: pactctl probe setup.

The caller is a device whose key is kept in --state, or a credential. A device
makes every check, and enrols again in every round, which changes nothing. If
the folder is lost another device is enrolled: where nothing is kept, as in a
pod, use a credential, or mount a Secret with device.key as the folder. With a
credential the checks of assertions are left out.

Two refusals, of the unregistered and of the killed audience, are written to the
signer's audit log. With --interval they are asked for every --audited-every and
stand in between. Nothing else is left behind.

--connect-to sends all to another address than the URL's, as a pod that talks to
a Service; Host, TLS name and audiences stay the URL's. Say http://HOST:PORT
where plain http is spoken though the issuer's URL is https.

With --interval it goes on until it is told to stop, with a line for each round,
and the checks where something changed or fails; --metrics serves Prometheus
metrics at /metrics, and /livez.

Exit codes: 0 every check passed, or it was told to stop; 1 nobody answered at
all; 2 wrong usage; 4 a check failed.`,
		Example: `  pactctl probe --issuer https://pa.example.com
  pactctl probe --issuer https://pa.example.com -o json --server \
      https://signer.example.com:8789 --token-file viewer.token
  pactctl probe --issuer https://pa.example.com \
      --credential-file probe.credential --connect-to http://signer:8787 \
      --replicas http://signer-replicas:8787 --grpc http://signer-grpc:8788 \
      --interval 1m --metrics 0.0.0.0:9464`,
		Args: unknownCommand,
	}
	p.target = newTarget(cmd)
	p.target.issuerFlag(cmd)
	audiences(cmd, &p.cfg.Audience, &p.cfg.KilledAudience)
	f := cmd.Flags()
	f.StringVar(&p.cfg.Signer, "signer", "", "base `URL` of the contract, if it is not the issuer's")
	f.StringVar(&p.cfg.ConnectTo, "connect-to", "", "connect to [http://]`HOST:PORT` instead of the URL's host")
	f.StringVar(&p.signerCA, "signer-ca-file", "", "`FILE` of PEM certificates to trust for signer, replicas and gRPC")
	f.StringSliceVar(&p.cfg.Replicas, "replicas", nil, "compare the key sets of [http://]`HOST:PORT`, or of all addresses of a name; may be repeated")
	f.StringVar(&p.cfg.GRPC, "grpc", "", "also sign over gRPC at [http://]`HOST:PORT`")
	f.StringVar(&p.credential, "credential-file", "", "`FILE` with a credential to use instead of a device key")
	f.StringVar(&p.state, "state", "", "`DIR` of the device key (default pactctl/probe in the XDG state folder)")
	f.StringVar(&p.enrollment, "enrollment-token-file", "", "`FILE` with an enrolment token, where devices need one")
	f.DurationVar(&p.cfg.Deadline, "deadline", probe.DefaultDeadline, "`TIME` that enrolling and signing may take")
	f.DurationVar(&p.cfg.Timeout, "timeout", probe.DefaultTimeout, "`TIME` after which no answer is waited for")
	f.DurationVar(&p.cfg.Settle, "settle", probe.DefaultSettle, "`TIME` in which a key change must have reached every replica")
	f.DurationVar(&p.cfg.AuditedEvery, "audited-every", probe.DefaultAuditedEvery, "`TIME` between refusals that go to the audit log")
	f.DurationVar(&p.interval, "interval", 0, "go on for ever, with this `TIME` from round to round")
	f.StringVar(&p.metrics, "metrics", "", "serve metrics on this `ADDRESS`, with --interval")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := unknownCommand(cmd, args); err != nil {
			return err
		}
		if err := notEmpty(cmd, "issuer", "signer", "connect-to", "replicas", "grpc", "credential-file", "state", "enrollment-token-file", "metrics", "audience"); err != nil {
			return err
		}
		if cmd.Flags().Changed("interval") && p.interval < time.Second {
			return usagef("--interval %v is less than a second", p.interval)
		}
		return p.run(cmd.Context())
	}
	cmd.AddCommand(newProbeSetupCmd(a, p.target))
	return cmd
}

// audiences adds the flags that name the probe's audiences.
func audiences(cmd *cobra.Command, works, killed *string) {
	cmd.Flags().StringVar(works, "audience", probe.DefaultAudience, "`AUDIENCE` to ask tokens for")
	cmd.Flags().StringVar(killed, "killed-audience", probe.DefaultKilledAudience, "`AUDIENCE` that is killed; empty: leave that out")
}

func (p *prober) run(ctx context.Context) error {
	if p.metrics != "" && p.interval == 0 {
		return usagef("--metrics goes only with --interval: a single round has its result as exit code and with -o json")
	}
	if err := p.configure(ctx); err != nil {
		return err
	}
	asked, err := probe.New(p.cfg)
	var field *probe.ConfigError
	if errors.As(err, &field) {
		return usagef("--%s: %s", probeFlags[field.Field], field.Problem)
	}
	if err != nil {
		return err
	}
	if p.interval == 0 {
		report := asked.Round(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return p.once(report)
	}
	return p.forever(ctx, asked)
}

// probeFlags are the flags by the fields of a probe's configuration.
var probeFlags = map[string]string{
	"Issuer": "issuer", "Signer": "signer", "ConnectTo": "connect-to", "Replicas": "replicas", "GRPC": "grpc", "Credential": "credential-file",
	"KilledAudience": "killed-audience", "Deadline": "deadline", "Timeout": "timeout", "Settle": "settle", "AuditedEvery": "audited-every",
}

// configure reads what the flags name.
func (p *prober) configure(ctx context.Context) error {
	operators := p.target.server != "" || p.target.context != "" || os.Getenv("PACT_SERVER") != "" || os.Getenv("PACT_CONTEXT") != ""
	if p.cfg.Issuer = p.target.issuer; p.cfg.Issuer == "" && operators {
		if err := p.askIssuer(ctx); err != nil {
			return err
		}
	}
	if p.cfg.Issuer == "" {
		p.cfg.Issuer = "http://" + config.Default().Listeners.Public.Address
		p.app.note("Probing the embedded signer's issuer %s; --issuer URL names another.", p.cfg.Issuer)
	}
	if operators {
		p.cfg.Schedule = p.schedule
	}
	if p.signerCA != "" {
		pem, err := os.ReadFile(p.signerCA)
		if err != nil {
			return fmt.Errorf("--signer-ca-file: %w", err)
		}
		p.cfg.RootCAs = x509.NewCertPool()
		if !p.cfg.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--signer-ca-file: %s holds no PEM certificate", p.signerCA)
		}
	}
	return p.caller()
}

// askIssuer finds out whose tokens are meant, where operators have only one issuer.
func (p *prober) askIssuer(ctx context.Context) error {
	return p.app.operate(ctx, p.target, func(ctx context.Context, o *operator) error {
		fleet, err := o.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
		if err != nil {
			return err
		}
		for _, i := range fleet.Issuers {
			if i.Issuer == o.issuer || o.issuer == "" && len(fleet.Issuers) == 1 {
				p.cfg.Issuer, p.cfg.Signer = i.Issuer, or(p.cfg.Signer, i.SignerUrl)
				return nil
			}
		}
		return usagef("--issuer URL is required: the signer has %s", plural(uint64(len(fleet.Issuers)), "issuer"))
	})
}

// caller reads the credential, or the device key.
func (p *prober) caller() error {
	if p.credential != "" {
		if p.state != "" || p.enrollment != "" {
			return usagef("--credential-file goes without --state and --enrollment-token-file: a credential enrols nothing")
		}
		secret, err := readToken("--credential-file", p.credential)
		p.cfg.Credential = probe.NewCredential(secret)
		return err
	}
	if p.enrollment != "" {
		token, err := readToken("--enrollment-token-file", p.enrollment)
		if err != nil {
			return err
		}
		p.cfg.EnrollmentToken = probe.NewCredential(token)
	}
	device, err := probe.OpenDevice(or(p.state, filepath.Join(xdg.StateHome, "pactctl", "probe")))
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	p.cfg.Device = device
	return nil
}

// schedule asks the admin listener what is to be published.
func (p *prober) schedule(ctx context.Context) (probe.Schedule, error) {
	var s probe.Schedule
	err := p.app.operate(ctx, p.target, func(ctx context.Context, o *operator) error {
		keys, err := o.ListKeys(ctx, &signerv1.ListKeysRequest{Issuer: p.cfg.Issuer})
		if err != nil {
			return err
		}
		set, err := o.GetKeySet(ctx, &signerv1.GetKeySetRequest{Issuer: p.cfg.Issuer})
		if err != nil {
			return err
		}
		fleet, err := o.FleetStatus(ctx, &signerv1.FleetStatusRequest{})
		if err != nil {
			return err
		}
		s = probe.Schedule{JWKS: []byte(set.Jwks), Replicas: map[string]uint64{}}
		for _, k := range keys.Keys {
			s.Keys = append(s.Keys, probe.Key{ID: k.Kid, State: k.State, SignAt: when(k.SignAt), RetireAt: when(k.RetireAt)})
		}
		for _, i := range fleet.Issuers {
			if i.Issuer == p.cfg.Issuer {
				s.Revision = i.ScheduleRevision
			}
		}
		for _, r := range fleet.Replicas {
			s.Replicas[r.Id] = r.Revisions[p.cfg.Issuer]
		}
		return nil
	})
	return s, err
}

// once prints a single round.
func (p *prober) once(r probe.Report) error {
	err := p.app.print(reportJSON(r), func(out *printer) {
		wide := 0
		for _, c := range r.Checks {
			wide = max(wide, len(c.Check))
		}
		for _, c := range r.Checks {
			printCheck(out, c, wide, r.At)
		}
		out.line("")
		out.say(0, "%s", probeTally(r))
		if !r.OK() {
			out.say(0, "What to do: %s", probeRunbook)
		}
	})
	switch {
	case err != nil:
		return err
	case !r.Answered:
		return fmt.Errorf("nobody answers at %s: see the checks above", or(p.cfg.ConnectTo, or(p.cfg.Signer, p.cfg.Issuer)))
	case !r.OK():
		return &codedError{exitProbe, fmt.Errorf("%s failed", plural(uint64(r.Count(probe.Failed)), "check"))}
	}
	return nil
}

// probeMarks are how an outcome begins a line.
var probeMarks = map[probe.Outcome]string{probe.Passed: "ok  ", probe.Failed: "FAIL", probe.LeftOut: "-   "}

// printCheck writes a check: what was seen, and what to do about it.
func printCheck(out *printer, c probe.Result, wide int, round time.Time) {
	detail := c.Detail
	if c.At.Before(round) {
		detail += ", " + out.ago(c.At)
	}
	out.labelled(fmt.Sprintf("%s  %-*s  %7s  ", probeMarks[c.Outcome], wide, c.Check, took(c)), detail)
	if c.Outcome == probe.Failed {
		out.say(len("FAIL  "), "%s", c.Remedy)
	}
}

// took is how long a check took, if it was made.
func took(c probe.Result) string {
	if c.Outcome == probe.LeftOut {
		return ""
	}
	return fmt.Sprintf("%d ms", c.Took.Milliseconds())
}

// probeTally counts the outcomes.
func probeTally(r probe.Report) string {
	s := fmt.Sprintf("%d passed", r.Count(probe.Passed))
	if n := r.Count(probe.Failed); n > 0 {
		s += fmt.Sprintf(", %d FAILED", n)
	}
	if n := r.Count(probe.LeftOut); n > 0 {
		s += fmt.Sprintf(", %d left out", n)
	}
	return fmt.Sprintf("%s: %s, in %v.", r.Issuer, s, r.Took.Round(time.Millisecond))
}

// reportJSON is a round for programs.
func reportJSON(r probe.Report) object {
	checks := []object{}
	for _, c := range r.Checks {
		o := object{{"check", c.Check}, {"outcome", string(c.Outcome)}, {"time", c.At.UTC()}, {"ms", c.Took.Milliseconds()}, {"detail", c.Detail}}
		if c.Outcome == probe.Failed {
			o = append(o, member{"remedy", c.Remedy}, member{"runbook", probeRunbook})
		}
		checks = append(checks, o)
	}
	return object{{"ok", r.OK()}, {"issuer", r.Issuer}, {"time", r.At.UTC()}, {"ms", r.Took.Milliseconds()}, {"checks", checks}}
}

// forever makes rounds until the process is told to stop.
func (p *prober) forever(ctx context.Context, asked *probe.Probe) error {
	metrics := probe.NewMetrics(p.cfg.Issuer, p.cfg.Patience(p.interval))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if p.metrics != "" {
		listener, err := net.Listen("tcp", p.metrics)
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		server := &http.Server{Handler: metrics.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
		defer server.Close()
		go func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				stop(fmt.Errorf("--metrics: %w", err))
			}
		}()
		p.app.note("Serving metrics on http://%s/metrics.", listener.Addr())
	}
	p.last = map[string]probe.Outcome{}
	asked.Loop(ctx, p.interval, func(r probe.Report) {
		metrics.Observe(r)
		if err := p.line(r); err != nil {
			stop(fmt.Errorf("print: %w", err))
		}
	})
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// line prints a round of many: one line, and what fails or is not as it was.
func (p *prober) line(r probe.Report) error {
	if p.app.output == "json" {
		b, err := json.Marshal(reportJSON(r), json.Deterministic(true))
		if err == nil {
			_, err = fmt.Fprintf(p.app.stdout, "%s\n", escaped(b))
		}
		return err
	}
	out := p.app.printer(p.app.stdout)
	out.line("%s  %s", r.At.UTC().Format(time.RFC3339), probeTally(r))
	for _, c := range r.Checks {
		before, known := p.last[c.Check]
		if !known {
			before = probe.Passed
		}
		if p.last[c.Check] = c.Outcome; c.Outcome == probe.Failed || before != c.Outcome {
			printCheck(out, c, 0, r.At)
		}
	}
	return out.err
}
