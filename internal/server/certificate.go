package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/internal/config"
)

// renewEvery is how often a listener's certificate is read anew.
const renewEvery = time.Minute

// certificate is a listener's certificate, which may be exchanged in its files
// while it serves.
type certificate struct {
	config.Listener
	current atomic.Pointer[tls.Certificate]
}

func loadCertificate(l config.Listener) (*certificate, error) {
	c := &certificate{Listener: l}
	_, err := c.read()
	return c, err
}

// read reads the files, and tells whether they hold another certificate. The one
// that is served stays if they hold none.
func (c *certificate) read() (changed bool, _ error) {
	next, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return false, err
	}
	before := c.current.Swap(&next)
	return before != nil && !bytes.Equal(before.Leaf.Raw, next.Leaf.Raw), nil
}

// end is when it expires.
func (c *certificate) end() time.Time { return c.current.Load().Leaf.NotAfter }

func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// keepCertificates reads the listeners' certificates anew until ctx ends.
func (s *Server) keepCertificates(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	said := map[string]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, f := range []*face{s.public, s.grpc, s.admin, s.ops} {
			if f.certificate != nil {
				said[f.name] = renew(f, said[f.name], s.log)
			}
		}
	}
}

// renew reads one listener's certificate, and returns what is wrong with it, which
// it tells once.
func renew(f *face, said string, log *slog.Logger) string {
	changed, err := f.certificate.read()
	switch {
	case err != nil && err.Error() != said:
		log.Warn("the listener's certificate cannot be read anew, the one before is served on", "listener", f.name, "expires", f.certificate.end(), "err", err)
	case changed:
		log.Info("the listener has a new certificate", "listener", f.name, "expires", f.certificate.end())
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
