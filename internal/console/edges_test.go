package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/internal/console/consoletest"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// What is only just wrong is told, and what only just is not is none.
func TestOnlyJust(t *testing.T) {
	late := func(by time.Duration) func(*consoletest.Service) { // the issuer's period is 30 days, its lead an hour
		return func(s *consoletest.Service) {
			s.Keys[0].SignAt = timestamppb.New(testTime.Add(-30*24*time.Hour + time.Hour - by))
		}
	}
	for name, c := range map[string]struct {
		change     func(s *consoletest.Service)
		headline   string
		says, lack string
	}{
		"a schedule behind by one": {func(s *consoletest.Service) { s.Fleet.Replicas[1].Revisions[consoletest.Issuer] = 11 }, "Nothing is stopped",
			"Replica pact-signer-7d9f-b serves schedule 11 of https://pa.example.com; the newest is 12.", ""},
		"its own schedule, as it is now": {func(s *consoletest.Service) { s.Fleet.Replicas[0].Revisions[consoletest.Issuer] = 11 }, "Nothing is stopped",
			"", "serves schedule"},
		"a problem of a store that is right": {func(s *consoletest.Service) { s.State.Problem = "custody lacks the last 3 acts" }, "Nothing is stopped",
			"custody lacks the last 3 acts.", ""},
		"one failure": {func(s *consoletest.Service) { s.Activity.Minutes[55].Failed = 1 }, "Attention needed",
			"1 sign request could not be served in the last 5 minutes", ""},
		"one failure before": {func(s *consoletest.Service) { s.Activity.Minutes[54].Failed = 1 }, "Nothing is stopped",
			"0 failed. Last 60 min", "in the last 5 minutes"},
		"overdue":     {late(2 * time.Minute), "Attention needed", "a rotation is overdue. The next key should have been published 2 min ago", ""},
		"not overdue": {late(50 * time.Second), "Nothing is stopped", "", "overdue"},
	} {
		t.Run(name, func(t *testing.T) {
			s := consoletest.Calm(testTime)
			c.change(s)
			r := newDesk(t, s, sharedSecret).look()
			r.want(t, http.StatusOK, c.says)
			if r.headline() != c.headline || c.lack != "" && strings.Contains(r.says, c.lack) {
				t.Errorf("headed %q, want %q, and not %q:\n%s", r.headline(), c.headline, c.lack, r.says)
			}
		})
	}
}

// The bars are as high as what they stand for, in their panels, and refusals stand on
// failures.
func TestBars(t *testing.T) {
	minutes := []*signerv1.ActivityMinute{{Signed: 50, Refused: 30, Failed: 10}, {Signed: 100, Refused: 5}, {Signed: 1}, {Failed: 20}}
	for i, m := range minutes {
		m.Start = timestamppb.New(testTime.Add(time.Duration(i) * time.Minute))
	}
	for _, narrow := range []bool{false, true} {
		p := bars(minutes, narrow, "id", "title", "desc")
		var grounds []float64
		rects := map[string][]shape{}
		for _, x := range p.Shapes {
			switch what, _, _ := strings.Cut(x.Class, " "); {
			case x.Class == "base":
				grounds = append(grounds, x.Y)
			case x.Kind == "rect":
				rects[what] = append(rects[what], x)
			}
		}
		if len(grounds) != 2 {
			t.Fatalf("%d panels", len(grounds))
		}
		stands := func(what string, ground func(x float64) float64, want map[int]float64) {
			t.Helper()
			var at []float64
			for _, x := range rects[what] {
				if x.Y2 == 0 {
					continue
				}
				at = append(at, x.X)
				if g := ground(x.X); math.Abs(x.Y+x.Y2-g) > 0.1 {
					t.Errorf("narrow %t: %s at %g ends at %g, want %g", narrow, what, x.X, x.Y+x.Y2, g)
				}
			}
			if len(at) != len(want) || !slices.IsSorted(at) {
				t.Fatalf("narrow %t: %s bars at %v, want %d", narrow, what, at, len(want))
			}
			step := (rects["signed"][1].X - rects["signed"][0].X)
			for _, x := range rects[what] {
				i := int(math.Round((x.X - rects["signed"][0].X) / step))
				if math.Abs(x.Y2-want[i]) > 0.1 {
					t.Errorf("narrow %t: %s of minute %d is %g high, want %g", narrow, what, i, x.Y2, want[i])
				}
			}
		}
		on := func(g float64) func(float64) float64 { return func(float64) float64 { return g } }
		stands("signed", on(grounds[0]), map[int]float64{0: 48, 1: 96, 2: 2}) // 96 high, for 100; none is thinner than 2
		stands("failed", on(grounds[1]), map[int]float64{0: 11, 3: 22})       // 44 high, for 40
		stands("refused", func(x float64) float64 {
			for _, f := range rects["failed"] {
				if f.X == x {
					return f.Y
				}
			}
			return grounds[1]
		}, map[int]float64{0: 33, 1: 5.5})
	}
}

// The page has the last twenty acts, the newest first.
func TestAuditHasTwenty(t *testing.T) {
	d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
	rows := d.console.view(d.console.read(t.Context(), d.service)).Audit.Rows
	if len(rows) != 20 || rows[0][0].Text != "30" || rows[19][0].Text != "11" {
		t.Errorf("%d rows: %v", len(rows), rows)
	}
}

// A secret that is too short to be one makes no session of all replicas.
func TestShortSecret(t *testing.T) {
	short := func(context.Context) ([]byte, error) { return bytes.Repeat([]byte{7}, 31), nil }
	s := consoletest.Calm(testTime)
	d, other := newDesk(t, s, short), newDesk(t, s, short)
	d.signIn(consoletest.ViewerToken)
	d.do("GET", "/", "").want(t, http.StatusOK, "at this replica only")
	other.cookies = slices.Clone(d.cookies)
	other.do("GET", "/", "").want(t, http.StatusOK, "This replica does not take your session")
}

// However often somebody signs in and out, and whatever comes as a cookie, little is
// kept and read; and who has a network of addresses counts as one.
func TestBounds(t *testing.T) {
	sessions := newDesk(t, consoletest.Calm(testTime), sharedSecret).console.sessions
	last := ""
	for i := range maxSignedOut + 10 {
		last = fmt.Sprint(i)
		sessions.end(session{id: last, expires: testTime.Add(time.Hour)})
	}
	if n := len(sessions.signedOut); n > maxSignedOut || sessions.signedOut[last].IsZero() {
		t.Errorf("%d sessions that were signed out are remembered, the last one at %v", n, sessions.signedOut[last])
	}

	for length, taken := range map[int]bool{100: true, maxCookie: false} {
		long := session{token: strings.Repeat("n", length), expires: testTime, id: "ID"}
		if _, _, ok := parseCookie(long.payload() + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 32))); ok != taken {
			t.Errorf("a token's name of %d bytes is taken: %t", length, ok)
		}
	}

	address := func(remote string) string {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = remote
		return addressOf(r).String()
	}
	one := address("[2001:db8:1:2::1]:1000")
	for remote, same := range map[string]bool{
		"[2001:db8:1:2:ffff:ffff:ffff:ffff]:2000": true, "[2001:db8:1:3::1]:1000": false, "[fe80::1%eth0]:1": false,
	} {
		if (address(remote) == one) != same {
			t.Errorf("%s counts as %s", remote, address(remote))
		}
	}
	if address("192.0.2.1:1") == address("192.0.2.2:1") || address("192.0.2.1:1") != address("[::ffff:192.0.2.1]:2") {
		t.Error("an address of IPv4 counts by itself, however it is written")
	}
}

// hanging is an admin service whose store never answers.
type hanging struct{ *consoletest.Service }

func (h hanging) As(signer.AdminToken) signerv1.AdminServiceClient { return h }

func (h hanging) FleetStatus(ctx context.Context, _ *signerv1.FleetStatusRequest, _ ...grpc.CallOption) (*signerv1.FleetStatusResponse, error) {
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

// A page does not wait for ever for a store that hangs: it comes, and says so.
func TestStoreHangs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDesk(t, consoletest.Calm(testTime), sharedSecret)
		d.console.cfg.Admin = func() (Admin, bool) { return hanging{d.service}, true }
		began := time.Now()
		r := d.look()
		r.want(t, http.StatusOK, "There was no answer within 5 s.")
		if r.headline() != "Not known: the fleet cannot be read" || time.Since(began) != 5*time.Second {
			t.Errorf("headed %q after %v", r.headline(), time.Since(began))
		}
	})
}
