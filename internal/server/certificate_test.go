package server

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/internal/config"
)

// A certificate that is exchanged in its files is served without a restart; files
// that hold none leave the one before, and are told of once.
func TestCertificateIsRenewed(t *testing.T) {
	certFile, keyFile, _ := certificateFiles(t)
	laterCert, laterKey, _ := certificateFiles(t)
	c, err := loadCertificate(config.Listener{CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	log, f := slog.New(slog.NewTextHandler(&text, nil)), &face{name: "public", certificate: c}
	served := func() []byte {
		t.Helper()
		now, err := c.tlsConfig().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return now.Certificate[0]
	}
	first := served()

	if said := renew(f, "", log); said != "" || text.Len() > 0 || !bytes.Equal(served(), first) {
		t.Errorf("nothing changed, but: %q, log %q", said, text.String())
	}
	copyFile(t, laterCert, certFile) // the key is still the one before
	said := renew(f, "", log)
	if said == "" || !bytes.Equal(served(), first) {
		t.Errorf("half of a change: said %q", said)
	}
	if renew(f, said, log); strings.Count(text.String(), "\n") != 1 || !strings.Contains(text.String(), "listener=public") {
		t.Errorf("log:\n%s", text.String())
	}
	copyFile(t, laterKey, keyFile)
	if said := renew(f, said, log); said != "" || bytes.Equal(served(), first) {
		t.Errorf("after the change: said %q", said)
	}
	if !strings.Contains(text.String(), "new certificate") {
		t.Errorf("log:\n%s", text.String())
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
