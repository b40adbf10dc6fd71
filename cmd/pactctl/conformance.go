package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jstemmer/go-junit-report/v2/junit"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/conformance"
)

// newConformanceCmd checks a Provider against the protocol.
func newConformanceCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "conformance",
		GroupID: groupTools,
		Short:   "Check a PACT provider against every rule of the protocol",
		Long: `Check a running PACT provider against every rule of the protocol, in its order:
as a personal agent, its issuer and its user would meet it. A card without
delegation is checked for Identity, one with delegation for Delegated too; give
one of each if you have them. Of more the first of each is taken.

The suite serves two issuers of its own, which the provider must be able to
reach: on this machine by default, elsewhere with --issuer-listen and
--issuer-url, each given twice. A provider that knows its issuers by
registration is registered with, where it has POST /api/platforms.

What needs a grant signs in with --email and --password, on the provider's own
pages. What cannot be checked is "not run", with the reason, and counts as no
failure. It writes conversations and grants: do not run it against a business
that is open.

Exit codes: 0 nothing failed, 1 a check failed, or none could be run, 2 wrong
usage.`,
		Example: `  pactctl sandbox -o json > ready & pactctl conformance --ready ready
  pactctl conformance --card https://air.test/.well-known/agent-card.json \
      --audience https://provider.test/a2a \
      --email robin@example.com --password-file password
  pactctl conformance --ready ready --only messages --only auth-kid
  pactctl conformance --list`,
		Args: cobra.NoArgs,
	}
	s := &suite{app: a, readyWait: 10 * time.Second}
	f := cmd.Flags()
	f.StringArrayVar(&s.cards, "card", nil, "`URL` of an Agent Card; can be repeated")
	f.StringVar(&s.audience, "audience", "", "`AUDIENCE` that tokens for this provider have")
	f.StringVar(&s.email, "email", "", "`EMAIL` of a user who can sign in")
	f.StringVar(&s.password, "password", "", "`PASSWORD` of the user, which others on this machine see here")
	f.StringVar(&s.passwordFile, "password-file", "", "`FILE` with the password; - is standard input")
	f.StringVar(&s.otherEmail, "other-email", "", "`EMAIL` of a second user, for what one may not see of another")
	f.StringVar(&s.otherPasswordFile, "other-password-file", "", "`FILE` with the second user's password")
	f.StringVar(&s.ready, "ready", "", "`FILE` with the ready line of pactctl sandbox -o json, which has all of the above; - is standard input")
	f.StringArrayVar(&s.asks, "ask", nil, "`SCOPE=TEXT`: a message that needs that permission; can be repeated (default the permission's own description)")
	f.StringVar(&s.closes, "close", "", "`TEXT` of a message that ends a conversation")
	f.StringArrayVar(&s.listen, "issuer-listen", nil, "`HOST:PORT` of an issuer of the suite; the second time, of the other (default free ports of 127.0.0.1)")
	f.StringArrayVar(&s.urls, "issuer-url", nil, "`ORIGIN` under which the provider reaches that issuer (default http:// and its address)")
	f.StringArrayVar(&s.only, "only", nil, "`ID|SECTION` to run, as --list shows them; can be repeated")
	f.BoolVar(&s.list, "list", false, "list the checks, and run none")
	f.BoolVar(&s.slow, "slow", false, "wait for things to expire for as long as the provider says they live, also if that is over a minute")
	f.BoolVar(&s.development, "development", false, "admit http on loopback in what the provider names (default if the cards are there)")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "`DURATION` within which each request must be answered")
	f.StringVar(&s.junit, "junit", "", "write the results to `FILE` as JUnit XML too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if s.list {
			return s.printList()
		}
		return s.run(cmd)
	}
	return cmd
}

// suite is what the command line says of a run.
type suite struct {
	*app
	cards                         []string
	audience                      string
	email, password, passwordFile string
	otherEmail, otherPasswordFile string
	ready                         string
	asks                          []string
	closes                        string
	listen, urls, only            []string
	list, slow, development       bool
	timeout                       time.Duration
	readyWait                     time.Duration // for the ready line's file
	junit                         string
}

// flagOf are the flags that set a field of conformance.Config.
var flagOf = map[string]string{"Cards": "--card", "Asks": "--ask", "Audience": "--audience", "Only": "--only", "Timeout": "--timeout"}

func (s *suite) run(cmd *cobra.Command) error {
	cfg, err := s.config(cmd.Context())
	if err != nil {
		return err
	}
	var report *os.File
	if s.junit != "" { // before the run, so that a bad path costs none
		if report, err = os.Create(s.junit); err != nil {
			return fmt.Errorf("--junit: %w", err)
		}
		defer report.Close()
	}
	started := s.now()
	lines := &resultPrinter{p: s.printer(s.stdout)}
	if s.output != "json" {
		cfg.Report = lines.result
	}
	results, err := conformance.Run(cmd.Context(), cfg)
	var bad *conformance.ConfigError
	if errors.As(err, &bad) {
		return s.usage(bad)
	}
	t := tallyOf(results)
	if err == nil || len(results) > 0 { // what came of an interrupted run is told too
		err = errors.Join(err, s.print(viewOf(results, t), func(*printer) { lines.summary(t, s.now().Sub(started)) }))
	}
	if report != nil {
		xml := junitOf(results, started)
		if werr := errors.Join(xml.WriteXML(report), report.Close()); err == nil && werr != nil {
			err = fmt.Errorf("--junit: %w", werr)
		}
	}
	if err == nil {
		err = t.err()
	}
	return err
}

// usage is a config that cannot work as a wrong flag.
func (s *suite) usage(bad *conformance.ConfigError) error {
	hint := ""
	if bad.Field == "Only" {
		hint = s.nearOnly()
	}
	return usagef("%s: %s%s", s.flag(bad.Field), bad.Reason, hint)
}

// nearOnly suggests checks and sections for the first --only that is none.
func (s *suite) nearOnly() string {
	known := &cobra.Command{SuggestionsMinimumDistance: 2}
	add := func(name string) { known.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}) }
	for _, section := range conformance.Sections() {
		add(section.Name)
	}
	for _, c := range conformance.Checks() {
		add(c.ID)
	}
	for _, name := range s.only {
		if found, _, err := known.Find([]string{name}); err == nil && found != known {
			continue
		}
		if near := known.SuggestionsFor(name); len(near) > 0 {
			return fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
		}
		return "; --list shows them"
	}
	return ""
}

// flag is the flag that a field of the config comes from.
func (s *suite) flag(field string) string {
	switch {
	case strings.HasSuffix(field, ".Listen"):
		return "--issuer-listen"
	case strings.HasSuffix(field, ".URL"):
		return "--issuer-url"
	}
	return or(flagOf[field], field)
}

// readyDoc is what is used of a sandbox's ready line.
type readyDoc struct {
	Audience string              `json:"audience"`
	Brands   []readyBrand        `json:"brands"`
	Login    conformance.Login   `json:"login"`
	Others   []conformance.Login `json:"others"`
}

type readyBrand struct {
	Card   string            `json:"card"`
	Asks   []conformance.Ask `json:"asks"`
	Closes string            `json:"closes"`
}

// config puts together what the flags and the ready line say; the flags win.
func (s *suite) config(ctx context.Context) (conformance.Config, error) {
	cfg := conformance.Config{
		Cards: s.cards, Audience: s.audience, Closes: s.closes, Slow: s.slow, Only: s.only,
		Timeout: s.timeout, Development: s.development, Now: s.now,
	}
	if s.ready == "-" && (s.passwordFile == "-" || s.otherPasswordFile == "-") || s.passwordFile == "-" && s.otherPasswordFile == "-" {
		return cfg, usagef("only one of --ready, --password-file and --other-password-file can be standard input")
	}
	if s.timeout <= 0 {
		return cfg, usagef("--timeout: %v is not positive", s.timeout)
	}
	if s.password != "" && s.passwordFile != "" {
		return cfg, usagef("--password and --password-file cannot both be given")
	}
	var err error
	if cfg.Login, err = s.login("--email", s.email, "--password-file", s.passwordFile, s.password); err != nil {
		return cfg, err
	}
	if cfg.Other, err = s.login("--other-email", s.otherEmail, "--other-password-file", s.otherPasswordFile, ""); err != nil {
		return cfg, err
	}
	for _, ask := range s.asks {
		scope, text, ok := strings.Cut(ask, "=")
		if !ok || scope == "" || strings.TrimSpace(text) == "" {
			return cfg, usagef("--ask %q is not SCOPE=TEXT", ask)
		}
		cfg.Asks = append(cfg.Asks, conformance.Ask{Scope: scope, Text: text})
	}
	for flag, values := range map[string][]string{"--issuer-listen": s.listen, "--issuer-url": s.urls} {
		if len(values) > len(cfg.Issuers) {
			return cfg, usagef("%s is given %d times: the suite has %d issuers", flag, len(values), len(cfg.Issuers))
		}
		for i, v := range values {
			if flag == "--issuer-url" {
				cfg.Issuers[i].URL = v
			} else {
				cfg.Issuers[i].Listen = v
			}
		}
	}
	if n, l := len(s.urls), len(s.listen); n > l {
		return cfg, usagef("--issuer-url is given %d times and --issuer-listen %d times: an origin needs the address here that it leads to", n, l)
	}
	if s.ready != "" {
		if err := s.readReady(ctx, &cfg); err != nil {
			return cfg, err
		}
	}
	if len(cfg.Cards) == 0 {
		return cfg, usagef("--card is required: the URL of an Agent Card (or --ready with a sandbox's ready line)")
	}
	return cfg, nil
}

// login is a user: both of email and password, or neither.
func (s *suite) login(emailFlag, email, fileFlag, file, password string) (conformance.Login, error) {
	if file != "" {
		text, err := s.readSmall(file, maxPassword, io.ReadAll)
		if err != nil {
			return conformance.Login{}, fmt.Errorf("%s: %w", fileFlag, err)
		}
		password = strings.TrimRight(string(text), "\r\n")
		if password == "" {
			return conformance.Login{}, fmt.Errorf("%s: there is no password in it", fileFlag)
		}
	}
	switch {
	case email != "" && password == "":
		return conformance.Login{}, usagef("%s needs %s: the user's password", emailFlag, fileFlag)
	case email == "" && password != "":
		return conformance.Login{}, usagef("a password needs %s: whose it is", emailFlag)
	}
	return conformance.Login{Email: email, Password: password}, nil
}

// What is read of a file at most, in bytes.
const (
	maxPassword = 64 << 10
	maxReady    = 1 << 20
)

// readSmall reads a file, or standard input.
func (s *suite) readSmall(file string, limit int64, read func(io.Reader) ([]byte, error)) ([]byte, error) {
	in := s.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := read(io.LimitReader(in, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it is longer than %d bytes", limit)
	}
	return text, err
}

// readToNewline reads up to the first newline, or all if there is none: a sandbox at the
// other end of a pipe runs on.
func readToNewline(in io.Reader) ([]byte, error) {
	line, err := bufio.NewReader(in).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}

// readyLine is the ready line. A sandbox that just starts has not written all of it,
// so a file is waited for.
func (s *suite) readyLine(ctx context.Context) (string, error) {
	ends := time.Now().Add(s.readyWait)
	for {
		text, err := s.readSmall(s.ready, maxReady, readToNewline)
		line, _, whole := strings.Cut(string(text), "\n")
		line = strings.TrimSpace(line)
		waits := s.ready != "-" && (errors.Is(err, fs.ErrNotExist) || err == nil && !whole && !jsontext.Value(line).IsValid())
		if !waits || !time.Now().Before(ends) {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return "", usagef("--ready: %v", err)
			case err != nil:
				return "", fmt.Errorf("--ready: %w", err)
			case line == "" && s.ready != "-":
				return "", fmt.Errorf("--ready: %s is empty: is the sandbox running?", s.ready)
			}
			return line, nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readReady fills in what the flags left out: all cards, of which the suite takes what
// it needs, and what is said to each brand.
func (s *suite) readReady(ctx context.Context, cfg *conformance.Config) error {
	line, err := s.readyLine(ctx)
	if err != nil {
		return err
	}
	var ready readyDoc
	if err := json.Unmarshal([]byte(line), &ready); err != nil || len(ready.Brands) == 0 {
		return errors.New("--ready: this is not the ready line of pactctl sandbox -o json")
	}
	var cards []string
	cfg.Brands = map[string]conformance.Brand{}
	for _, b := range ready.Brands {
		cards = append(cards, b.Card)
		cfg.Brands[b.Card] = conformance.Brand{Asks: b.Asks, Closes: b.Closes}
	}
	if len(cfg.Cards) == 0 {
		cfg.Cards = cards
	}
	cfg.Audience = or(cfg.Audience, ready.Audience)
	if cfg.Login.Email == "" {
		cfg.Login = ready.Login
	}
	if cfg.Other.Email == "" && len(ready.Others) > 0 {
		cfg.Other = ready.Others[0]
	}
	return nil
}

// conformanceView is the result of a run. Its JSON is a promise to scripts.
type conformanceView struct {
	OK     bool         `json:"ok"`
	Passed int          `json:"passed"`
	Failed int          `json:"failed"`
	NotRun int          `json:"notRun"`
	Checks []resultView `json:"checks"`
}

type resultView struct {
	conformance.Result
	Seconds float64 `json:"seconds"`
}

func viewOf(results []conformance.Result, t tally) conformanceView {
	v := conformanceView{OK: t.err() == nil, Passed: t.passed, Failed: len(t.failed), NotRun: t.notRun, Checks: []resultView{}}
	for _, r := range results {
		v.Checks = append(v.Checks, resultView{r, r.Took.Seconds()})
	}
	return v
}

// tally counts results.
type tally struct {
	passed, notRun int
	failed         []string // ids
	why            string   // the first reason why a check was not run
	reasons        []lack   // all of them
}

// lack is why so many checks were not run.
type lack struct {
	why    string
	checks int
}

func tallyOf(results []conformance.Result) tally {
	var t tally
	for _, r := range results {
		switch r.Status {
		case conformance.Passed:
			t.passed++
		case conformance.Failed:
			t.failed = append(t.failed, r.ID)
		case conformance.NotRun:
			t.notRun++
			t.why = or(t.why, r.Detail)
			i := slices.IndexFunc(t.reasons, func(known lack) bool { return known.why == r.Detail })
			if i < 0 {
				i, t.reasons = len(t.reasons), append(t.reasons, lack{why: r.Detail})
			}
			t.reasons[i].checks++
		}
	}
	return t
}

// err is nil if the Provider passed: nothing failed, and something was run.
func (t tally) err() error {
	const named = 5
	switch ids := t.failed; {
	case len(ids) > named:
		return fmt.Errorf("%d checks failed: %s and %d more", len(ids), strings.Join(ids[:named], ", "), len(ids)-named)
	case len(ids) > 0:
		return fmt.Errorf("%s failed: %s", plural(len(ids), "check"), strings.Join(ids, ", "))
	case t.passed == 0:
		return fmt.Errorf("no check could be run: %s", t.why)
	}
	return nil
}

// resultPrinter tells people of each result as it comes.
type resultPrinter struct {
	p       *printer
	section string
	told    string // the reason told last for a check that was not run
}

// marks are how results are told.
var marks = map[conformance.Status]string{
	conformance.Passed: "ok", conformance.Failed: "FAIL", conformance.NotRun: "-",
}

func (l *resultPrinter) result(r conformance.Result) {
	if l.heading(r.Section) {
		l.told = ""
	}
	l.p.hanging(fmt.Sprintf("%-4s  %-23s  ", marks[r.Status], r.ID), r.Requirement)
	if r.Status == conformance.NotRun {
		if r.Detail != l.told { // a whole section often has one reason
			l.p.paragraph("not run: "+r.Detail, 6)
		}
		l.told = r.Detail
		return
	}
	for detail := range strings.Lines(r.Detail) {
		l.p.paragraph(detail, 6)
	}
}

// heading writes the title of a section that begins, with its name for --only.
func (l *resultPrinter) heading(section string) bool {
	if section == l.section {
		return false
	}
	if l.section != "" {
		l.p.line("")
	}
	l.section = section
	for _, s := range conformance.Sections() {
		if s.Name == section {
			l.p.line("%s (%s)", s.Title, s.Name)
		}
	}
	return true
}

func (l *resultPrinter) summary(t tally, took time.Duration) {
	l.p.line("")
	l.p.line("%d passed, %d failed, %d not run, in %v", t.passed, len(t.failed), t.notRun, took.Round(100*time.Millisecond))
	const named = 3
	for _, r := range slices.SortedStableFunc(slices.Values(t.reasons), func(a, b lack) int { return b.checks - a.checks })[:min(named, len(t.reasons))] {
		l.p.hanging(fmt.Sprintf("%4d not run: ", r.checks), r.why)
	}
}

// junitOf renders results as JUnit: a suite for each section.
func junitOf(results []conformance.Result, started time.Time) junit.Testsuites {
	all := junit.Testsuites{Name: "pactctl conformance"}
	var total time.Duration
	for _, section := range conformance.Sections() {
		suite := junit.Testsuite{Name: section.Name, ID: len(all.Suites)}
		suite.SetTimestamp(started)
		var took time.Duration
		for _, r := range results {
			if r.Section != section.Name {
				continue
			}
			took += r.Took
			suite.AddTestcase(testcaseOf(r))
		}
		if suite.Tests == 0 {
			continue
		}
		suite.Time = inSeconds(took)
		total += took
		all.AddSuite(suite)
	}
	all.Time = inSeconds(total)
	return all
}

func testcaseOf(r conformance.Result) junit.Testcase {
	var lines []string // clean: XML cannot hold every character
	for line := range strings.Lines(r.Detail) {
		lines = append(lines, strings.TrimSpace(clean(line)))
	}
	detail := strings.Join(lines, "\n")
	c := junit.Testcase{Name: r.ID, Classname: "conformance." + r.Section, Time: inSeconds(r.Took)}
	switch r.Status {
	case conformance.Failed:
		c.Failure = &junit.Result{Message: r.Requirement, Type: r.Source, Data: detail}
	case conformance.NotRun:
		c.Skipped = &junit.Result{Message: detail}
	}
	return c
}

func inSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// printList tells what there is to check.
func (s *suite) printList() error {
	checks := conformance.Checks()
	if len(s.only) > 0 {
		for _, name := range s.only {
			if !slices.ContainsFunc(checks, func(c conformance.Check) bool { return name == c.ID || name == c.Section }) {
				return s.usage(&conformance.ConfigError{Field: "Only", Reason: fmt.Sprintf("there is no check or section %q", name)})
			}
		}
		checks = slices.DeleteFunc(checks, func(c conformance.Check) bool {
			return !slices.Contains(s.only, c.ID) && !slices.Contains(s.only, c.Section)
		})
	}
	return s.print(checks, func(p *printer) {
		l := &resultPrinter{p: p}
		for _, c := range checks {
			l.listed(c)
		}
	})
}

func (l *resultPrinter) listed(c conformance.Check) {
	l.heading(c.Section)
	what := c.Requirement
	if c.Slow {
		what += " (slow)"
	}
	l.p.hanging(fmt.Sprintf("  %-23s  ", c.ID), what)
}
