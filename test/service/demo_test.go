package service

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// The whole demo runs against a running agent, which must be a fresh one that is as
// fast as the demo is.
func TestDemo(t *testing.T) {
	t.Parallel()
	w := newHome(t)
	w.profile = filepath.Join(w.home, "demo")
	s := w.serve("--time-scale", "60")
	var report struct {
		OK    bool
		Steps []struct {
			Name, Detail string
			OK           bool
		}
		Receipts []struct{ Verdict string }
	}
	code, stdout, stderr := w.pactctl("demo", "--remote", "unix:"+s.Socket, "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || !report.OK || len(report.Steps) != 16 || len(report.Receipts) < 3 {
		t.Fatalf("exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	for _, r := range report.Receipts {
		if r.Verdict != "verified" {
			t.Errorf("receipts: %+v", report.Receipts)
		}
	}
	code, stdout, stderr = w.pactctl("demo", "--remote", "unix:"+s.Socket)
	if code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl agent serve --profile DIR --time-scale 60") {
		t.Errorf("with a profile that was used: exit %d\n%s%s", code, stdout, stderr)
	}
	s.stop()

	slow := newHome(t)
	s = slow.serve()
	code, stdout, stderr = slow.pactctl("demo", "--remote", "unix:"+s.Socket)
	if code != 1 || stdout != "" || !strings.Contains(stderr, "pactctl agent serve --profile DIR --time-scale 60") {
		t.Errorf("with an agent that is slower: exit %d\n%s%s", code, stdout, stderr)
	}
}
