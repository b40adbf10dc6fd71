package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The port that names the issuer is taken again, and stays remembered while it
// cannot be.
func TestPublicPortIsRemembered(t *testing.T) {
	c := testConfig(t)
	// Nobody else takes ports of this address, where there is more than one.
	host := fmt.Sprintf("127.78.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)
	if l, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
		l.Close()
		c.Listeners.Public.Address = net.JoinHostPort(host, "0")
	}
	stop := func(s *Server) {
		t.Helper()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	first := launch(t, c)
	stop(first)
	again := launch(t, c)
	if again.Info().Public != first.Info().Public || again.Info().Issuers[0] != first.Info().Issuers[0] || len(again.Info().Notes) != 0 {
		t.Errorf("started again as %+v, was %+v", again.Info(), first.Info())
	}
	stop(again)

	other, err := net.Listen("tcp", hostPort(first.Info().Public))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := launch(t, c)
	if notes := elsewhere.Info().Notes; elsewhere.Info().Public == first.Info().Public || len(notes) != 1 || !strings.Contains(notes[0], "another issuer") {
		t.Errorf("with the port taken: %+v, %v", elsewhere.Info(), notes)
	}
	stop(elsewhere)
	other.Close()
	back := launch(t, c)
	if back.Info().Public != first.Info().Public {
		t.Errorf("with the port free again: %s, was %s", back.Info().Public, first.Info().Public)
	}
	stop(back)

	file := filepath.Join(c.Data, "public-port")
	if err := os.WriteFile(file, []byte("my notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("started with %v", err)
	}
}

// An issuer with a URL of its own has nothing to do with the port.
func TestPublicPortOfANamedIssuer(t *testing.T) {
	c := testConfig(t)
	c.Issuers[0].URL = "http://pa.localhost:8787"
	launch(t, c)
	if _, err := os.Stat(filepath.Join(c.Data, "public-port")); !os.IsNotExist(err) {
		t.Error("the port is remembered")
	}
}

// Calls are bounded by what the schedules count on, also when time runs faster.
func TestSignDeadline(t *testing.T) {
	for scale, want := range map[int]time.Duration{1: 5 * time.Second, 60: time.Second} {
		c := testConfig(t)
		c.Development.TimeScale = scale
		s := launch(t, c)
		if got := s.signDeadline(); got != want || s.issuers[0].params.SignDeadline != want {
			t.Errorf("scale %d: %v, the schedule counts on %v, want %v", scale, got, s.issuers[0].params.SignDeadline, want)
		}
		if s.switchParams.Permit > s.issuers[0].params.Staleness || s.switchParams.Poll > s.issuers[0].params.Staleness/3 {
			t.Errorf("scale %d: a schedule that is stale after %v is confirmed every %v", scale, s.issuers[0].params.Staleness, s.switchParams.Poll)
		}
	}
}
