package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
	"github.com/pactsigner/pactsigner/test/servers"
)

// row is what came of one scenario.
type row struct {
	Name, What string
	Report     fleet.Report
	Recovery   []time.Duration
	Kills      []fleet.Kill
	Survived   string
}

// killTimes are how long a kill took until it was effective.
type killTimes struct{ healthy, silent []time.Duration }

// measureKills throws many kills under load: with three replicas that answer, and
// with one that stands still.
func measureKills(t *testing.T, vault *servers.Vault) (times killTimes) {
	n, m := 12, 2
	if *full {
		n, m = 200, 20
	}
	e := &env{t: t, vault: vault, prefix: "chaos-kills"}
	e.begin(fleet.Options{})
	admin := e.fleet.AdminClient(t, e.fleet.Replicas[0])
	measure := func() time.Duration {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), fleet.Patience)
		defer cancel()
		took, err := e.load.MeasureKill(ctx, admin)
		if err != nil {
			t.Fatalf("kill: %v", err)
		}
		return took
	}
	e.stopped = nil // a resume of everything lifts it
	e.fleet.MustPactctl(t, e.fleet.Replicas[0], "resume", "--all", "--reason", "test")
	for range n {
		times.healthy = append(times.healthy, measure())
	}
	for range m {
		frozen := e.fleet.Replicas[2]
		frozen.Pause(t)
		times.silent = append(times.silent, measure())
		frozen.Resume(t)
		e.load.Settle(t, time.Now(), fleet.Patience)
	}
	e.finish()
	t.Logf("kill to effective: %s", times)
	return times
}

func (k killTimes) String() string {
	return fmt.Sprintf("three that answer: %s; one that stands still: %s", quantiles(k.healthy), quantiles(k.silent))
}

func quantiles(d []time.Duration) string {
	d = slices.Sorted(slices.Values(d))
	at := func(q float64) time.Duration { return d[min(int(q*float64(len(d))), len(d)-1)].Round(time.Millisecond) }
	return fmt.Sprintf("p50 %v, p99 %v, longest %v (%d kills)", at(0.5), at(0.99), d[len(d)-1].Round(time.Millisecond), len(d))
}

// writeResults writes docs/chaos.md, of a run of everything.
func writeResults(t *testing.T, rows []row, kills killTimes) {
	t.Helper()
	if slices.ContainsFunc(rows, func(r row) bool { return r.Name == "" }) || len(kills.healthy) == 0 || len(kills.silent) == 0 {
		t.Fatal("-write wants every scenario to run")
	}
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "chaos.md"), []byte(document(rows, kills, versions(t))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// document is the results as people read them.
func document(rows []row, kills killTimes, made string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What a fleet does while things fail

Written by `+"`make chaos`"+`: three replicas on a real Vault and a real Redis, loaded with %d requests a second (credentials and
devices, REST and gRPC), under each of these. A checker that knows only the contract saw every request and every answer, and three
verifiers that cache the key set as real ones do verified every token: one honours `+"`max-age`"+`, one refetches for an unknown `+"`kid`"+`
at most every 30 s, one keeps its copy for 10 minutes.

Every run ends the test if it breaks a rule: an answer that the contract does not document, a request open for longer than its
deadline, a token for a request that was sent after a kill was printed effective, a token that a verifier refuses, a repeated
`+"`jti`"+`, a subject that changed, a replica that does not recover by itself (but for a store that was wiped or rolled back, which
must stay 503 and say what to do). The columns say what was seen on the way.

Made with %s.

| What goes wrong | What callers saw, by phase | Longest request | Tokens after *effective* | Failed verifications | Signs again after | Survived |
| --- | --- | --- | --- | --- | --- | --- |
`, *rate, made)
	for _, r := range rows {
		var phases, recovery []string
		for _, p := range r.Report.Phases {
			if len(p.Counts) > 0 {
				phases = append(phases, p.String())
			}
		}
		for _, d := range r.Recovery {
			recovery = append(recovery, d.Round(10*time.Millisecond).String())
		}
		if len(recovery) == 0 {
			recovery = []string{"-"}
		}
		fmt.Fprintf(&b, "| **%s**: %s | %s | %v | %d | %d | %s | %s |\n", r.Name, r.What, strings.Join(phases, "; "),
			r.Report.Longest.Round(time.Millisecond), r.Report.AfterEffective, r.Report.FailedVerifications(), strings.Join(recovery, ", "), r.Survived)
	}
	fmt.Fprintf(&b, `
*Signs again after*: from the moment at which what was broken was whole again (or a kill lifted) until the last request that was
answered otherwise than with a token. *none* among the answers: the test itself kept that replica from answering (paused,
killed).

## Kill to effective

From the operator's call until the answer that it is effective, under the same load:

| Replicas | p50, p99 |
| --- | --- |
| three that answer | %s |
| two that answer and one that stands still | %s |
`, quantiles(kills.healthy), quantiles(kills.silent))
	return b.String()
}

func TestDocument(t *testing.T) {
	doc := document([]row{{
		Name: "n", What: "w", Survived: "s", Recovery: []time.Duration{1234 * time.Millisecond},
		Report: fleet.Report{Longest: time.Second, Phases: []fleet.PhaseReport{{Name: "begin", Counts: map[int]int{503: 2, 200: 1, 0: 3}}}},
	}}, killTimes{[]time.Duration{2, 1}, []time.Duration{3 * time.Second}}, "go")
	for _, want := range []string{
		"| **n**: w | begin: 1 × 200, 2 × 503, 3 × none | 1s | 0 | 0 | 1.23s | s |",
		"| two that answer and one that stands still | p50 3s, p99 3s, longest 3s (1 kills) |",
		"Made with go.",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("there is no %q in\n%s", want, doc)
		}
	}
}

var number = regexp.MustCompile(`[0-9]+\.[0-9]+(\.[0-9]+)?`)

// versions are of everything that took part.
func versions(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	system := runtime.GOOS
	if out, err := exec.Command("uname", "-r").Output(); err == nil {
		if parts := strings.SplitN(string(out), ".", 3); len(parts) == 3 {
			system += " " + parts[0] + "." + parts[1]
		}
	}
	return fmt.Sprintf("%s, Vault %s, Redis %s, %s/%s, %d CPUs", runtime.Version(), servers.VaultVersion, number.FindString(string(out)), system, runtime.GOARCH, runtime.NumCPU())
}
