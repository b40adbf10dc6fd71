package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// ends are the ways in which a delegation ends.
var ends = map[string]func(w *world, grantID string){
	"revoked": func(w *world, grantID string) {
		if held, err := w.sandbox.store.revoke(w.t.Context(), grantID, w.clock.now()); err != nil || !held {
			w.t.Fatal(held, err)
		}
	},
	"expired": func(w *world, _ string) { w.clock.advance(Defaults().TokenTTL) },
}

// wantEndedTurn checks that a turn was refused for its delegation.
func (w *world) wantEndedTurn(a answer, ran int) {
	w.t.Helper()
	if a.status != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != `Bearer realm="a2a", error="invalid_token"` || len(a.body) != 0 {
		w.t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if n := len(w.sandbox.Executed()); n != ran {
		w.t.Errorf("%d turns ran, want %d", n, ran)
	}
}

// TestDelegationEndsBeforeTheBody: what ends while the body comes gives no turn, and
// no stored reply.
func TestDelegationEndsBeforeTheBody(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := w.grant(0, scopeUpcoming)
			access, grantID := text(t, g, "access_token"), w.grantID(g)
			in, _ := w.reply(w.say(LarklineID, "told", "", "Show my upcoming flights", access))
			var conns []net.Conn
			var read []*bufio.Reader
			bodies := []string{
				`{"message":{"messageId":"new","role":"ROLE_USER","parts":[{"text":"Show my upcoming flights"}]}}`,
				`{"message":{"messageId":"told","contextId":"` + in + `","role":"ROLE_USER","parts":[{"text":"Show my upcoming flights"}]}}`,
			}
			host := strings.TrimPrefix(w.ready.Provider, "http://")
			for _, body := range bodies {
				conn, err := net.Dial("tcp", host)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				fmt.Fprintf(conn, "POST /a2a/%s/message:send HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-A2A-User-Delegation: Bearer %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
					LarklineID, host, w.token(), access, len(body))
				// Whoever waits for the body has taken the token.
				answers := bufio.NewReader(conn)
				if goOn, err := http.ReadResponse(answers, nil); err != nil || goOn.StatusCode != http.StatusContinue {
					t.Fatal(goOn, err)
				}
				conns = append(conns, conn)
				read = append(read, answers)
			}
			end(w, grantID)
			for i, conn := range conns {
				fmt.Fprint(conn, bodies[i])
				resp, err := http.ReadResponse(read[i], nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				w.wantEndedTurn(answer{resp.StatusCode, resp.Header, body}, 1)
			}
		})
	}
}

// TestDelegationEndsInTheQueue: a turn that waits for another of its user's does not
// run when what it was to run under has ended; its messageId is free again.
func TestDelegationEndsInTheQueue(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			entered, goOn := make(chan struct{}, 2), make(chan struct{})
			brand := Larkline(testStart)
			brand.Respond = func(_ context.Context, turn Turn) (Reply, error) {
				entered <- struct{}{}
				<-goOn
				return Reply{Text: "well", Used: []string{scopeUpcoming}}, nil
			}
			w := newWorld(t, func(c *Config) { c.Brands = []Brand{brand} })
			g := w.grant(0, scopeUpcoming)
			access, grantID := text(t, g, "access_token"), w.grantID(g)
			headers := []string{"Authorization: Bearer " + w.token(), "X-A2A-User-Delegation: Bearer " + access}
			send := func(id string) <-chan answer {
				got := make(chan answer, 1)
				go func() {
					a, err := w.try(http.MethodPost, w.url(LarklineID, "message:send"), `{"message":{"messageId":"`+id+`","role":"ROLE_USER","parts":[{"text":"x"}]}}`, headers...)
					if err != nil {
						t.Error(err)
					}
					got <- a
				}()
				return got
			}
			first := send("first")
			<-entered
			second := send("second")
			for w.sandbox.store.count(t, "messages") < 2 && t.Context().Err() == nil {
				runtime.Gosched()
			}
			end(w, grantID)
			close(goOn)
			ran := <-first
			w.reply(ran) // what began before, ends, and has its receipt
			if jws := text(t, ran.json(t), "message", "metadata", "pact.receipt", "jws"); !strings.HasPrefix(jws, "eyJ") {
				t.Errorf("receipt %q", jws)
			}
			w.wantEndedTurn(<-second, 1)
			if n := w.sandbox.store.count(t, "messages"); n != 1 {
				t.Errorf("%d messages are reserved or answered", n)
			}
			if n := len(w.sandbox.store.underWay); n != 0 {
				t.Errorf("%d turns are under way", n)
			}
		})
	}
}

// TestExpiredTokenByFault: what the fault lets pass, passes the whole turn.
func TestExpiredTokenByFault(t *testing.T) {
	w := newWorld(t)
	access := text(t, w.grant(0, scopeUpcoming), "access_token")
	w.clock.advance(Defaults().TokenTTL)
	if err := w.sandbox.SetFaults("lax-delegation-expired*1"); err != nil {
		t.Fatal(err)
	}
	w.reply(w.say(LarklineID, "m1", "", "Show my upcoming flights", access))
	w.wantEndedTurn(w.say(LarklineID, "m2", "", "Show my upcoming flights", access), 1)
}
