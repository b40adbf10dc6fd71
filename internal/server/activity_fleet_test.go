package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/test/servers"
)

// fleetDid asks a replica what the fleet did, and sums the minutes.
func (s *Server) fleetDid(t *testing.T, token string) (signed, refused, failed int, rates map[string]float64) {
	t.Helper()
	answer := s.mustOperate(t, token, "GET", "/v1/activity", nil)
	n := func(v any) (n int) {
		if v != nil {
			_, _ = fmt.Sscan(fmt.Sprint(v), &n) // 64-bit numbers are text
		}
		return n
	}
	minutes, _ := answer["minutes"].([]any)
	if len(minutes) != 60 {
		t.Fatalf("the activity of the last hour has %d minutes: %v", len(minutes), answer)
	}
	for _, m := range minutes {
		m := m.(map[string]any)
		signed, refused, failed = signed+n(m["signed"]), refused+n(m["refused"]), failed+n(m["failed"])
	}
	rates = make(map[string]float64)
	replicas, _ := answer["replicas"].([]any)
	for _, r := range replicas {
		r := r.(map[string]any)
		rate, _ := r["signedRate"].(float64)
		rates[r["replica"].(string)] = rate
	}
	return signed, refused, failed, rates
}

// Whichever replica is asked, it tells what all three did, also one that has ended
// since, or whose clock is off; and a replica that is started again under its name
// counts on.
func TestFleetActivity(t *testing.T) {
	c := onVault(t, onRedis(t, servers.StartRedis(t, servers.RedisOptions{}).Addr()), servers.StartVault(t, servers.VaultOptions{}), true)
	c.Development.TimeScale = 1 // who is held up for a second keeps its permit: a 503 counts too
	token := mustInit(t, c)
	start := func(name string, off time.Duration) *Server {
		c := c
		c.Replica, c.Development.ClockOffset = name, off
		s := run(t, c)
		s.awaitReady(t)
		return s
	}
	a, b := start("a", 0), start("b", 3*time.Second)
	last := c
	last.Replica = "c"
	ends, err := New(last, Options{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ends.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends.awaitReady(t)

	credential := a.letIn(t, token)
	signed := 0
	for i, s := range []*Server{a, b, ends} {
		for range i + 2 {
			s.signs(t, credential)
			signed++
		}
		if code, _, _ := s.sign(t, "no credential"); code != 401 {
			t.Fatalf("sign answers %d", code)
		}
	}
	told := func(want int, of ...string) {
		t.Helper()
		for _, s := range []*Server{a, b} {
			eventually(t, func() string {
				signed, refused, failed, rates := s.fleetDid(t, token)
				missing := ""
				for _, name := range of {
					if _, known := rates[name]; !known {
						missing += name
					}
				}
				if signed != want || refused != 3 || failed != 0 || missing != "" || len(rates) != len(of) {
					return fmt.Sprintf("replica %s tells %d signed of %d, %d refused, %d failed, rates %v", s.replica, signed, want, refused, failed, rates)
				}
				return ""
			})
		}
	}
	told(signed, "a", "b", "c")

	// Its last word is said as it ends, however short before that it signed.
	ends.signs(t, credential)
	signed++
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := ends.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	told(signed, "a", "b")

	again := start("c", -2*time.Second)
	again.signs(t, credential)
	again.signs(t, credential)
	signed += 2
	told(signed, "a", "b", "c")

	// Of itself a replica tells what is so at this moment. A caller may have its answer
	// before it is counted.
	a.signs(t, credential)
	eventually(t, func() string {
		if n := a.scrape(t).value("sign_in_flight", ""); n != 0 {
			return fmt.Sprintf("a answers %v sign requests", n)
		}
		return ""
	})
	if now, _, _, rates := a.fleetDid(t, token); now != signed+1 || rates["a"] <= 0 {
		t.Fatalf("right after its own sign a tells of %d, want %d; rates %v", now, signed+1, rates)
	}
}
