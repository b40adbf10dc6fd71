package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/pactsigner/pactsigner/internal/config"
)

// Timeouts of the HTTP listeners. A contract request has 32 KiB at most and is
// answered within seconds; the admin listener also streams a kill's barrier and
// walks the whole audit log.
const (
	headerTimeout     = 5 * time.Second
	requestTimeout    = 15 * time.Second
	adminTimeout      = 2 * time.Minute
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
	keepaliveInterval = 30 * time.Second
)

// face is one bound socket.
type face struct {
	name string
	net.Listener
	certificate *certificate // nil: no TLS
	url         string       // scheme and authority at which this machine reaches it
}

// listen binds a listener.
func listen(ctx context.Context, name string, c config.Listener) (*face, error) {
	f := &face{name: name}
	scheme := "http"
	if c.TLS() {
		cert, err := loadCertificate(c)
		if err != nil {
			return nil, fmt.Errorf("listeners.%s: certificate: %w", name, err)
		}
		f.certificate = cert
		scheme = "https"
	}
	l, err := (&net.ListenConfig{KeepAlive: keepaliveInterval}).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("listeners.%s.address: %w; free the port or choose another", name, err)
	}
	f.Listener = l
	f.url = scheme + "://" + authority(c.Address, l.Addr(), scheme)
	return f, nil
}

// authority is the configured host with the port that was bound, without the
// scheme's default port. A listener on every address is reached on loopback.
func authority(configured string, bound net.Addr, scheme string) string {
	host, _, _ := net.SplitHostPort(configured) // validated
	_, port, _ := net.SplitHostPort(bound.String())
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if err == nil && ip.Is6() {
			host = "::1"
		}
	}
	host = strings.ToLower(host)
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		if strings.Contains(host, ":") {
			return "[" + host + "]"
		}
		return host
	}
	return net.JoinHostPort(host, port)
}

// httpServer returns a server with every timeout set.
func (f *face) httpServer(h http.Handler, write time.Duration, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      write,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if f.certificate != nil {
		s.TLSConfig = f.certificate.tlsConfig()
	}
	return s
}

// serveHTTP serves until the server is shut down.
func (f *face) serveHTTP(s *http.Server) error {
	var err error
	if f.certificate != nil {
		err = s.ServeTLS(f.Listener, "", "")
	} else {
		err = s.Serve(f.Listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("listener %s: %w", f.name, err)
}

// bothVersions lets a server without TLS speak HTTP/2 by prior knowledge, as
// gRPC clients do, besides HTTP/1.
func bothVersions() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}
