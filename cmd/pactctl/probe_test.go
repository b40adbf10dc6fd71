package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/probe"
)

// On an interval there is a line a round, metrics are served, and a signal ends it as
// if all was done.
func TestProbeInterval(t *testing.T) {
	// A signer that is not well: what is printed is what fails.
	signer := httptest.NewServer(http.NotFoundHandler())
	defer signer.Close()
	for _, output := range []string{"text", "json"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, _, _ := testApp("", false)
		out, w := io.Pipe()
		said, errs := io.Pipe()
		a.stdout, a.stderr = w, errs
		ended := make(chan int, 1)
		go func() {
			ended <- a.run(ctx, []string{
				"probe", "--issuer", signer.URL, "--state", filepath.Join(t.TempDir(), "state"),
				"--interval", "1s", "--metrics", "127.0.0.1:0", "-o", output,
			})
			w.Close()
			errs.Close()
		}()
		note, err := bufio.NewReader(said).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		url := strings.TrimSuffix(strings.TrimPrefix(note, "Serving metrics on "), ".\n")
		go io.Copy(io.Discard, said)
		lines := bufio.NewReader(out)
		for rounds := 0; rounds < 2; {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case output == "json":
				var r struct {
					OK     *bool
					Checks []struct{ Check, Outcome string }
				}
				if err := json.Unmarshal([]byte(line), &r); err != nil || r.OK == nil || *r.OK || len(r.Checks) < 10 {
					t.Fatalf("%v: %s", err, line)
				}
				rounds++
			case strings.Contains(line, "FAILED"):
				rounds++
			}
		}
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), `pact_probe_success{check="status",issuer="`+signer.URL+`"} 0`) {
			t.Errorf("%v %s", err, body)
		}
		cancel()
		go io.Copy(io.Discard, lines)
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// A round shows what failed with what to do, and later ones what changed.
func TestProbeLines(t *testing.T) {
	a, stdout, _ := testApp("", false)
	p := &prober{app: a, last: map[string]probe.Outcome{}}
	at := testNow
	results := func(sign, verify probe.Outcome) probe.Report {
		return probe.Report{Issuer: testIssuer, At: at, Took: 40 * time.Millisecond, Answered: true, Checks: []probe.Result{
			{Check: probe.CheckSign, Outcome: sign, At: at, Took: 3 * time.Millisecond, Detail: "seen", Remedy: "Mend it."},
			{Check: probe.CheckVerify, Outcome: verify, At: at.Add(-time.Minute), Took: time.Millisecond, Detail: "read"},
		}}
	}
	for _, r := range []probe.Report{
		results(probe.Passed, probe.LeftOut), results(probe.Passed, probe.LeftOut), results(probe.Failed, probe.LeftOut),
		results(probe.Failed, probe.Passed), results(probe.Passed, probe.Passed), results(probe.Passed, probe.Passed),
	} {
		if err := p.line(r); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "probe-lines.txt", stdout.Bytes())
	stdout.Reset()
	if err := p.once(results(probe.Failed, probe.Passed)); exitCode(t.Context(), err) != exitProbe {
		t.Error(err)
	}
	golden(t, "probe.txt", stdout.Bytes())
}
