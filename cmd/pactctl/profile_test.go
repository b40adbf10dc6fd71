package main

import (
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
