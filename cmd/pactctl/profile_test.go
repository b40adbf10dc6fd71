package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

// A telephone gets a QR code, unless it could not open the link or the terminal is
// too low to keep link and code in sight.
func TestQRCode(t *testing.T) {
	for name, c := range map[string]struct {
		origin string
		height int
		shown  bool
	}{
		"public":          {"https://brand.example.com", 60, true},
		"height unknown":  {"https://brand.example.com", 0, true},
		"low terminal":    {"https://brand.example.com", 24, false},
		"loopback":        {"http://127.0.0.1:8792", 60, false},
		"loopback's name": {"http://localhost:8792", 60, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, stdout, stderr := testApp("", true)
			a.height = c.height
			p := &profile{app: a}
			p.showQR(agent.SignIn{
				LinkOrigin: c.origin,
				Link:       agent.Secret(c.origin + "/login?return_to=" + strings.Repeat("x", 80)),
			})
			if got := strings.Contains(stderr.String(), "█"); got != c.shown || stdout.Len() > 0 {
				t.Errorf("shown %v, want %v; stdout %q", got, c.shown, stdout)
			}
		})
	}
}

// SG-14, GR-6: a lost key is told once, and stays in sight until the owner has
// enrolled again; a key that others can read is not used. PACT_KEYRING says where
// a key may be.
func TestProfileKey(t *testing.T) {
	b := newBench(t)
	b.json(false, 0, "enroll", "--signer", b.signer)
	path := filepath.Join(b.profile, "profile.key")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := b.run(false, "", "status"); code != 1 || stdout != "" || !strings.Contains(stderr, "chmod 600 "+path) {
		t.Errorf("open to others: exit %d\n%s%s", code, stdout, stderr)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for told := range 2 {
		code, stdout, stderr := b.run(false, "", "status")
		if code != 0 || !strings.Contains(stdout, "signer_key_unusable") || !strings.Contains(stdout, "key was lost at") || strings.Contains(stderr, "is gone, and what it sealed is lost") != (told == 0) {
			t.Errorf("lost: exit %d\n%s%s", code, stdout, stderr)
		}
	}
	b.json(false, 0, "enroll", "--signer", b.signer)
	if v := b.json(false, 0, "status"); v["ready"] != true || v["keyLost"] != nil {
		t.Errorf("status %v", v)
	}
	t.Setenv("PACT_KEYRING", "on")
	if code, _, stderr := b.run(false, "", "status"); code != 1 || !strings.Contains(stderr, "only a keyring is to be used") {
		t.Errorf("on: exit %d\n%s", code, stderr)
	}
	t.Setenv("PACT_KEYRING", "perhaps")
	if code, _, stderr := b.run(false, "", "status"); code != 2 || !strings.Contains(stderr, "say on or off") {
		t.Errorf("perhaps: exit %d\n%s", code, stderr)
	}
}

// A link that no QR code holds is shown without one.
func TestQRCodeOfALongLink(t *testing.T) {
	a, _, stderr := testApp("", true)
	a.height = 200
	p := &profile{app: a}
	p.showQR(agent.SignIn{LinkOrigin: "https://login.example", Link: agent.Secret("https://login.example/?" + strings.Repeat("A", 4000))})
	if stderr.Len() > 0 {
		t.Errorf("printed %d bytes", stderr.Len())
	}
}
