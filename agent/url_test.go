package agent_test

import (
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/agent"
)

func TestURLVectors(t *testing.T) {
	type file struct {
		Cases []struct {
			URL         string
			Development bool
			Want        string
		}
	}
	vectors(t, "urls.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		for _, c := range f.Cases {
			t.Run(c.URL, func(t *testing.T) {
				got := "ok"
				if _, err := (agent.URLRules{Development: c.Development}).Check(c.URL); err != nil {
					got = "refused"
				}
				if got != c.Want {
					t.Errorf("development %v: got %s, want %s", c.Development, got, c.Want)
				}
			})
		}
	})
}

// TestURLSpellings covers UR-1..UR-4 where one host has many spellings. rule is
// what production refuses by; dev says whether development admits it.
func TestURLSpellings(t *testing.T) {
	for _, c := range []struct {
		url, rule string
		dev       bool
	}{
		// UR-1: form.
		{"https://brand.example", "", true},
		{"HTTPS://BRAND.example:443/a?b=c", "", true},
		{"https://brand.example./", "", true},
		{"https://brand.example:65535/", "", true},
		{"https://_dmarc.brand.example/", "", true},
		{"https://bücher.example/", "", true},
		{"https://brand.example:0/", "UR-1", false},
		{"https://brand.example:65536/", "UR-1", false},
		{"https://brand.example:x/", "UR-1", false},
		{"https://:443/", "UR-1", false},
		{"https:///path", "UR-1", false},
		{"https:brand.example", "UR-1", false},
		{"https:/brand.example/", "UR-1", false},
		{"//brand.example/", "UR-1", false},
		{"https://@brand.example/", "UR-1", false},
		{"https://user@brand.example/", "UR-1", false},
		{"https://brand.example/#", "UR-1", false},
		{"https://brand.example\\@evil.example/", "UR-1", false},
		{"https://brand.example/a b", "UR-1", false},
		{" https://brand.example/", "UR-1", false},
		{"https://brand.example/\n", "UR-1", false},
		{"https://bra\tnd.example/", "UR-1", false},
		{"https://a..example/", "UR-1", false},
		{"https://brand.example../", "UR-1", false},
		{"https://./", "UR-1", false},
		{"https://%31%32%37.0.0.1/", "UR-1", false},
		{"https://brand.example%00.evil/", "UR-1", false},
		{"https://bra;nd.example/", "UR-1", false},
		{"https://" + strings.Repeat("a", 64) + ".example/", "UR-1", false},
		{"https://" + strings.Repeat("abcdefg.", 32) + "example/", "UR-1", false},
		{"data:text/html,x", "UR-1", false},
		{"file:///etc/passwd", "UR-1", false},
		{"ftp://brand.example/", "UR-1", false},
		{"ws://127.0.0.1/", "UR-1", false},
		{"http://10.0.0.1/", "UR-1", false},
		{"http://brand.example/", "UR-1", false},
		{"http://8.8.8.8/", "UR-1", false},
		{"https://" + strings.Repeat("a", 9000), "UR-1", false},

		// UR-2: loopback, in every spelling.
		{"https://LOCALHOST/", "UR-2", true},
		{"https://localhost./", "UR-2", true},
		{"https://a.b.localhost:1/", "UR-2", true},
		{"http://a.localhost:1/", "UR-2", true},
		{"https://127.0.0.1./", "UR-2", true},
		{"http://127.1:80/", "UR-2", true},
		{"https://2130706433/", "UR-2", true},
		{"https://0x7f000001/", "UR-2", true},
		{"https://0X7F.1/", "UR-2", true},
		{"https://127.0x1/", "UR-2", true},
		{"https://127.255.255.254/", "UR-2", true},
		{"https://0177.0.0.1/", "UR-2", true},
		{"https://017700000001/", "UR-1", false}, // loopback in octal, no address in decimal
		{"https://[::1]:8443/", "UR-2", true},
		{"https://[0:0::1]/", "UR-2", true},
		{"https://[::1%25lo]/", "UR-2", true},
		{"https://[::ffff:127.0.0.1]/", "UR-2", true},
		{"https://[::ffff:7f00:1]/", "UR-2", true},
		{"https://１２７.0.0.1/", "UR-2", true},
		{"https://127。0．0｡1/", "UR-2", true},
		{"https://ⓛocalhost/", "UR-2", true},
		{"https://①②⑦.⓪.⓪.①/", "UR-2", true},
		{"https://notlocalhost/", "", true},
		{"https://localhost.example/", "", true},

		// UR-3: internal addresses, in every spelling; development changes nothing.
		{"https://0.0.0.0/", "UR-3", false},
		{"https://0/", "UR-3", false},
		{"https://0x/", "UR-3", false},
		{"https://0.1.2.3/", "UR-3", false},
		{"https://10.0.0.1/", "UR-3", false},
		{"https://10.1/", "UR-3", false},
		{"https://167772161/", "UR-3", false},
		{"https://0xa000001/", "UR-3", false},
		{"https://0x0a.0.0.1/", "UR-3", false},
		{"https://012.0.0.1/", "UR-3", false},
		{"https://010.0.0.1/", "UR-3", false}, // 8.0.0.1 in octal, 10.0.0.1 to others
		{"https://0127.0.0.1/", "UR-3", true}, // 87.0.0.1 in octal, loopback to others
		{"https://100.64.0.1/", "UR-3", false},
		{"https://100.127.255.255/", "UR-3", false},
		{"https://100.128.0.1/", "", true},
		{"https://169.254.169.254/", "UR-3", false},
		{"https://2852039166/", "UR-3", false},
		{"https://0xA9FEA9FE/", "UR-3", false},
		{"https://172.16.0.1/", "UR-3", false},
		{"https://172.31.255.255/", "UR-3", false},
		{"https://172.32.0.1/", "", true},
		{"https://192.168.1/", "UR-3", false},
		{"https://192.168.257/", "UR-3", false},
		// Never a business, and for the connection to refuse (UR-5): TestForbiddenAddr.
		{"https://224.0.0.1/", "", true},
		{"https://255.255.255.255/", "", true},
		{"https://198.18.0.1/", "", true},
		{"https://192.0.0.8/", "", true},
		{"https://[100::1]/", "", true},
		{"https://[2001::1]/", "", true},
		{"https://[64:ff9b:1::1]/", "", true},
		{"https://[64:ff9b::224.0.0.1]/", "", true},
		{"https://8.8.8.8/", "", true},
		{"https://134744072/", "", true}, // 8.8.8.8
		{"https://1.2.3.4.5/", "UR-1", false},
		{"https://256.1.1.1/", "UR-1", false},
		{"https://08.8.8.8/", "UR-1", false},
		{"https://4294967296/", "UR-1", false},
		{"https://1.2.3.0x100/", "UR-1", false},
		{"https://a.1/", "UR-1", false},
		{"https://brand.0x7f/", "UR-1", false},
		{"https://[::]/", "UR-3", false},
		{"https://[fc00::1]/", "UR-3", false},
		{"https://[fdff::1]/", "UR-3", false},
		{"https://[fe80::1]/", "UR-3", false},
		{"https://[fe80::1%25eth0]/", "UR-3", false},
		{"https://[febf::1]/", "UR-3", false},
		{"https://[fec0::1]/", "", true},
		{"https://[ff02::1]/", "", true},
		{"https://[::ffff:10.0.0.1]/", "UR-3", false},
		{"https://[::ffff:a9fe:a9fe]/", "UR-3", false},
		{"https://[::10.0.0.1]/", "UR-3", false},
		{"https://[64:ff9b::10.0.0.1]/", "UR-3", false},
		{"https://[64:ff9b::7f00:1]/", "UR-3", false},
		{"https://[2002:a00:1::]/", "UR-3", false},
		{"https://[2002:7f00:1::]/", "UR-3", false},
		{"https://[2001:0:a00:1::]/", "UR-3", false},
		{"https://[2001:0:808:808::f5ff:fffe]/", "UR-3", false}, // Teredo of 10.0.0.1
		{"https://[2001:db8:0:1:0:5efe:a00:1]/", "UR-3", false}, // ISATAP
		{"https://[2606:4700::1111]/", "", true},
		{"https://[64:ff9b::8.8.8.8]/", "", true},
		{"https://[::ffff:8.8.8.8]/", "", true},
		{"https://[brand.example]/", "UR-1", false},
		{"https://[8.8.8.8]/", "UR-1", false},
		{"https://[v1.x]/", "UR-1", false},
		{"https://[::1/", "UR-1", false},

		// UR-4: names.
		{"https://metadata/", "UR-4", false},
		{"https://METADATA./", "UR-4", false},
		{"https://metadata.google.internal./", "UR-4", false},
		{"https://instance-data/", "UR-4", false},
		{"https://a.b.internal/", "UR-4", false},
		{"https://ｍetadata/", "UR-4", false},
		{"https://internal.example/", "", true},
		{"https://metadata.example/", "", true},
	} {
		t.Run(c.url[:min(len(c.url), 60)], func(t *testing.T) {
			_, err := agent.URLRules{}.Check(c.url)
			got := ""
			var e *agent.URLError
			if errors.As(err, &e) {
				got = e.Rule
			} else if err != nil {
				t.Fatalf("not a *URLError: %v", err)
			}
			if got != c.rule {
				t.Errorf("production: refused by %q, want %q (%v)", got, c.rule, err)
			}
			if _, err := (agent.URLRules{Development: true}).Check(c.url); (err == nil) != c.dev {
				t.Errorf("development: %v, want admitted %v", err, c.dev)
			}
		})
	}
}

// TestOrigin covers PR-1: one provider has one key, however it is written.
func TestOrigin(t *testing.T) {
	for _, c := range [][2]string{
		{"https://Brand.Example/a", "https://brand.example"},
		{"https://brand.example:443/", "https://brand.example"},
		{"https://brand.example:0443/", "https://brand.example"},
		{"https://brand.example./", "https://brand.example"},
		{"https://brand.example:8443/", "https://brand.example:8443"},
		{"http://127.1:80/x", "http://127.0.0.1"},
		{"http://[0:0::1]:8787", "http://[::1]:8787"},
		{"https://BÜCHER.example", "https://xn--bcher-kva.example"},
		{"/relative", ""},
	} {
		u, err := url.Parse(c[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := agent.Origin(u); got != c[1] {
			t.Errorf("%s: %q, want %q", c[0], got, c[1])
		}
	}
	if agent.Origin(nil) != "" {
		t.Error("no URL has an origin")
	}
}

// TestForbiddenAddr covers UR-5's classes on addresses that DNS may answer.
func TestForbiddenAddr(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "10.0.0.1": true, "::ffff:192.168.0.1": true, "fe80::1%eth0": true,
		"198.18.0.1": true, "192.0.0.8": true, "64:ff9b:1::1": true, "100::1": true, "2001::1": true,
		"224.0.0.1": true, "255.255.255.255": true, "fec0::1": true, "ff02::1": true, "64:ff9b::224.0.0.1": true,
		"2001:db8:0:1:0:5efe:a00:1": true, "2001:0:808:808::f5ff:fffe": true,
		"8.8.8.8": false, "2606:4700::1": false, "2001:db8:0:1:0:5efe:808:808": false,
	} {
		if got := agent.ForbiddenAddr(netip.MustParseAddr(addr), false); got != want {
			t.Errorf("%s: forbidden %v, want %v", addr, got, want)
		}
	}
	if !agent.ForbiddenAddr(netip.Addr{}, true) {
		t.Error("the zero address is allowed")
	}
	if agent.ForbiddenAddr(netip.MustParseAddr("::ffff:127.0.0.1"), true) || !agent.ForbiddenAddr(netip.MustParseAddr("10.0.0.1"), true) {
		t.Error("development is for loopback, and for nothing else")
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"https://brand.example/", "https://0x7f.1/", "https://[::ffff:10.0.0.1]/", "https://１.2", "http://localhost.:1#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := agent.URLRules{}.Check(raw)
		if err != nil {
			var e *agent.URLError
			if !errors.As(err, &e) || e.Rule == "" || e.Reason == "" {
				t.Fatalf("%q: untyped or mute error %v", raw, err)
			}
			return
		}
		if u.Scheme != "https" || u.User != nil || u.Fragment != "" || agent.Origin(u) == "" {
			t.Fatalf("%q passes", raw)
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			if a := a.WithZone("").Unmap(); a.IsPrivate() || a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() {
				t.Fatalf("%q passes with address %v", raw, a)
			}
		}
		if _, err := (agent.URLRules{Development: true}).Check(raw); err != nil {
			t.Fatalf("%q: development refuses what production admits: %v", raw, err)
		}
		// The origin is itself a URL that passes, and its own origin.
		again, err := agent.URLRules{}.Check(agent.Origin(u))
		if err != nil || agent.Origin(again) != agent.Origin(u) {
			t.Fatalf("%q: origin %q is not stable: %v", raw, agent.Origin(u), err)
		}
	})
}
