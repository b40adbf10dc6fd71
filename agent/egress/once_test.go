package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// listen accepts connections until the test ends, and hands them over.
func listen(t *testing.T, config *tls.Config, talk func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if config != nil {
				c = tls.Server(c, config)
			}
			go func() {
				defer c.Close()
				talk(c)
			}()
		}
	}()
	return l.Addr().String()
}

// CV-2, CV-12, GR-5: what may have arrived is not sent again, also where HTTP/2
// would: a server that has read the request and then refuses its stream, or says
// with GOAWAY that it never saw it.
func TestPostOnce(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2"}}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	s.Close()
	for name, refuse := range map[string]func(*http2.Framer, uint32) error{
		"refused": func(f *http2.Framer, stream uint32) error {
			return f.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
		},
		"goaway": func(f *http2.Framer, _ uint32) error { return f.WriteGoAway(0, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var bodies atomic.Int32
			address := listen(t, config, func(c net.Conn) {
				_, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
				f := http2.NewFramer(c, c)
				_ = f.WriteSettings()
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						return
					}
					if d, ok := frame.(*http2.DataFrame); ok && d.StreamEnded() {
						bodies.Add(1)
						if refuse(f, d.StreamID) != nil {
							return
						}
					}
				}
			})
			client := New(Config{Rules: Rules{Development: true}, Policy: AllowAll, TLS: &tls.Config{RootCAs: pool}})
			defer client.Close()
			_, err := client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://" + address + "/message:send", Body: []byte("{}")})
			if code := CodeOf(err); code != Network && code != Timeout {
				t.Errorf("got %v", err)
			}
			if n := bodies.Load(); n != 1 {
				t.Errorf("it arrived %d times", n)
			}
		})
	}
}

// A POST never meets a connection that the server has closed while it lay idle:
// whether that had arrived nobody could tell (TR-8).
func TestPostOnFreshConnection(t *testing.T) {
	var connections atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	client := New(Config{Rules: Rules{Development: true}, Policy: AllowAll})
	defer client.Close()
	for range 3 {
		if _, err := client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: s.URL, Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections for three requests", n)
	}
}

// TR-4, TR-10: a change of protocols is no answer, and holds nobody up, for its
// body hears neither a limit nor a context.
func TestSwitchingProtocols(t *testing.T) {
	address := listen(t, nil, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until the client hangs up
	})
	client := New(Config{Rules: Rules{Development: true}, Policy: AllowAll})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, r := range []Request{
		{Purpose: Card, Method: "GET", URL: "http://" + address},
		{Purpose: Message, Method: "POST", URL: "http://" + address, Body: []byte("{}")},
	} {
		_, err := client.Do(ctx, r)
		wantCode(t, err, Network, true)
	}
}
