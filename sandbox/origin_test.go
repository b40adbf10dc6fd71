package sandbox

import (
	"net/http"
	"strings"
	"testing"
)

// An origin has one spelling, and what it is of another is told.
func TestCanonicalOrigin(t *testing.T) {
	long := strings.Repeat("a", 63)
	for raw, want := range map[string]string{
		"https://pa.example": "https://pa.example", "http://localhost:80": "http://localhost", "https://pa.example:80": "https://pa.example:80",
		"https://PA.Example": "https://pa.example", "HTTPS://pa.example": "https://pa.example", "https://pa.example.": "https://pa.example",
		"https://pa.example:443": "https://pa.example", "https://pa.example:0443": "https://pa.example", "https://pa.example:08443": "https://pa.example:8443",
		"https://pa.example:": "https://pa.example", "https://pa.example:0": "", "https://pa.example:65536": "", "https://pa.example:x": "",
		"https://xn--bcher-kva.example": "https://xn--bcher-kva.example", "https://my--app.example": "https://my--app.example", "https://xn--a.example": "", "https://bücher.example": "https://xn--bcher-kva.example",
		"https://раураl.example": "https://xn--l-7sba6dbr.example", "https://pa\u202e.example": "", "https://ｐａ.example": "https://pa.example",
		"https://<script>alert(1)</script>": "", "https://a_b.example": "", "https://-a.example": "", "https://a..example": "", "https://.": "",
		"https://" + long + ".example": "https://" + long + ".example", "https://" + long + "a.example": "",
		"https://" + strings.Repeat(long+".", 4) + "example": "",
		"http://127.0.0.1:8787":                              "http://127.0.0.1:8787", "http://127.0.0.01": "", "http://127.1": "", "http://2130706433": "", "http://0x7f000001": "", "https://pa.0x7F": "",
		"http://[::1]": "http://[::1]", "http://[0:0:0:0:0:0:0:1]:8787": "http://[::1]:8787", "https://[2001:DB8::0]": "https://[2001:db8::]",
		"http://[::ffff:127.0.0.1]": "http://127.0.0.1", "http://[fe80::1%25eth0]": "",
		"https://pa.example/": "", "https://pa.example/x": "", "https://pa.example?": "", "https://pa.example#": "", "https://user@pa.example": "",
		"ftp://pa.example": "", "pa.example": "", "https://": "", "": "",
	} {
		if got := canonicalOrigin(raw); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

// One issuer has one name: other spellings of it neither call nor register, and are
// asked for nothing.
func TestIssuersHaveOneName(t *testing.T) {
	for _, is := range []Issuers{{Any: true, Local: true}, {Local: true}} {
		for _, iss := range []string{
			"https://PA.example", "https://pa.example.", "https://pa.example:443", "https://pa.example:0444", "https://pa.example:",
			"https://раураl.example", "https://pa\u202e.example", "https://<script>", "http://LOCALHOST", "http://localhost.:80", "http://[::1]:80", "http://[0::1]",
		} {
			if keys, err := is.keys(iss, iss+"/r"); err == nil {
				t.Errorf("%q may call, with keys at %s", iss, keys)
			}
			if is.mayRegister(iss) == nil {
				t.Errorf("%q may register", iss)
			}
		}
	}
	w := newWorld(t)
	port := w.issuer.url[strings.LastIndex(w.issuer.url, ":")+1:]
	for _, iss := range []string{"http://127.0.0.1:0" + port, "HTTP://127.0.0.1:" + port, "http://[::ffff:127.0.0.1]:" + port} {
		claims := w.claims()
		claims["iss"] = iss
		if a := w.do(http.MethodGet, w.url(MarrowID, "tasks"), "", "Authorization: Bearer "+sign(t, w.issuer.keys[0], claims, nil)); a.status != 401 {
			t.Errorf("%s: %d", iss, a.status)
		}
	}
	if n := w.issuer.fetches.Load(); n != 0 {
		t.Errorf("%d fetches", n)
	}
	for raw, want := range map[string]string{
		"https://PA.example:443": "write https://pa.example,", "https://bücher.example": "write https://xn--bcher-kva.example,", "https://<script>": "use an origin",
	} {
		_, err := New(Config{Issuers: &Issuers{Listed: []Issuer{{Issuer: raw}}}, PasswordMemory: 64})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q listed: %v, want %s", raw, err, want)
		}
	}
}
