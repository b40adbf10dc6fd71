package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// UR-5, TR-1: a name that turns private between two hops of one exchange is
// refused at the hop where it does, whichever that is.
func TestRebindingAtEachHop(t *testing.T) {
	chain := []string{"a.example", "b.example", "c.example", "a.example", "b.example"}
	for at := range chain {
		t.Run(fmt.Sprint("hop ", at), func(t *testing.T) {
			of, visits := map[string][][]string{}, map[string]int{}
			for i, name := range chain {
				if visits[name]++; i == at {
					of[name] = append(of[name], []string{"10.0.0.1"})
				} else {
					of[name] = append(of[name], []string{fmt.Sprintf("93.184.216.%d", 30+i)})
				}
			}
			hop := 0
			w := newWorld(t, of, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Connection", "close") // each hop looks up anew
				if hop++; hop < len(chain) {
					rw.Header().Set("Location", "https://"+chain[hop]+"/")
					rw.WriteHeader(http.StatusFound)
				}
			}))
			_, err := w.get(t, Card, "https://"+chain[0]+"/", nil)
			e := wantCode(t, err, DestinationRefused, at > 0)
			if e.Origin != "https://"+chain[at] || len(w.dialled) != at {
				t.Errorf("%v after %v", err, w.dialled)
			}
		})
	}
}

// UR-5: the socket goes to the address that was checked: no second lookup could
// answer otherwise.
func TestOneLookupForOneConnection(t *testing.T) {
	of := map[string][][]string{"a.example": {{"93.184.216.34"}, {"127.0.0.1"}}}
	w := newWorld(t, of, http.NotFoundHandler())
	if _, err := w.get(t, Card, "https://a.example/", nil); err != nil {
		t.Fatal(err)
	}
	if w.answers.asked["a.example"] != 1 || !slices.Equal(w.dialled, []string{"93.184.216.34:443"}) {
		t.Errorf("asked %d times, dialled %v", w.answers.asked["a.example"], w.dialled)
	}
}

// UR-5, TR-8: the rebinding defence is that of every purpose, and of a POST.
func TestRebindingOfEachPurpose(t *testing.T) {
	for purpose := range Limits {
		of := map[string][][]string{"a.example": {{"93.184.216.34"}, {"192.168.0.1"}}}
		w := newWorld(t, of, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Connection", "close") }))
		for i := range 2 {
			_, err := w.client.Do(t.Context(), Request{Purpose: purpose, Method: "POST", URL: "https://a.example/", Body: []byte("x")})
			if i == 0 && err != nil {
				t.Errorf("%s: %v", purpose, err)
			} else if i == 1 {
				wantCode(t, err, DestinationRefused, false)
			}
		}
		if len(w.dialled) != 1 {
			t.Errorf("%s: dialled %v", purpose, w.dialled)
		}
	}
}

// resolverErrors answers every name with one error.
type resolverErrors struct{ err error }

func (r resolverErrors) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, r.err
}

// TR-8: whatever a name server says that is no address, nothing was sent.
func TestNameErrors(t *testing.T) {
	for what, err := range map[string]error{
		"ENOTFOUND": &net.DNSError{Err: "no such host", IsNotFound: true},
		"EAI_AGAIN": &net.DNSError{Err: "server misbehaving", IsTemporary: true},
		"ENODATA":   &net.DNSError{Err: "no data"},
		"refused":   &net.DNSError{Err: "read udp 10.0.0.9:5353->10.0.0.53:53: read: connection refused", Server: "10.0.0.53:53", Name: "a.example"},
		"other":     errors.New("broken"),
	} {
		w := newWorld(t, nil, http.NotFoundHandler())
		w.client.dial.resolver = resolverErrors{err}
		_, got := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: "https://a.example/", Body: []byte("x")})
		if e := wantCode(t, got, DestinationRefused, false); len(w.dialled) != 0 || e.Status != 0 {
			t.Errorf("%s: %v", what, got)
		}
		// What a person reads does not have which name server was asked.
		if text := got.Error(); !strings.HasPrefix(text, "message https://a.example: destination_refused: name lookup: ") || strings.Contains(text, "53") {
			t.Errorf("%s: %v", what, text)
		}
	}
	w := newWorld(t, nil, http.NotFoundHandler())
	w.client.dial.resolver = resolverErrors{&net.DNSError{Err: "i/o timeout", IsTimeout: true}}
	_, got := w.client.Do(t.Context(), Request{Purpose: Card, Method: "GET", URL: "https://a.example/"})
	wantCode(t, got, Timeout, false)
}

// TR-1, TR-3: exactly ten redirects are followed, and the last URL counts as each
// does, whatever led there.
func TestRedirectCount(t *testing.T) {
	for _, purpose := range []Purpose{Card, Metadata, JWKS} {
		for n, fits := range map[int]bool{10: true, 11: false} {
			asked := 0
			w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if asked++; asked <= n {
					http.Redirect(rw, r, fmt.Sprintf("/%d", asked), http.StatusFound)
				}
			}))
			resp, err := w.get(t, purpose, "https://a.example/", nil)
			if fits {
				if err != nil || len(resp.Hops) != 11 || asked != 11 {
					t.Errorf("%s: %d redirects: %v after %d requests", purpose, n, err, asked)
				}
				continue
			}
			if wantCode(t, err, TooManyRedirects, true); asked != 11 {
				t.Errorf("%s: %d redirects: %d requests", purpose, n, asked)
			}
		}
	}
}

// TR-2: a body is never forwarded: what has one is not redirected at all.
func TestBodyIsNeverForwarded(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		var bodies []int64
		w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			bodies = append(bodies, r.ContentLength)
			if r.URL.Path == "/" {
				rw.Header().Set("Location", "https://b.example/end")
				rw.WriteHeader(status)
			}
		}))
		for _, purpose := range []Purpose{Card, Token, Message} {
			bodies = nil
			_, err := w.client.Do(t.Context(), Request{Purpose: purpose, Method: "POST", URL: "https://a.example/", Body: []byte("secret")})
			if wantCode(t, err, RedirectNotAllowed, true); len(bodies) != 1 {
				t.Errorf("%s, %d: %d requests", purpose, status, len(bodies))
			}
		}
	}
}

// TR-5: no cookie that was set comes back.
func TestNoCookies(t *testing.T) {
	w := newWorld(t, public, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Cookie") != "" {
			t.Errorf("sent %s", r.Header.Get("Cookie"))
		}
		http.SetCookie(rw, &http.Cookie{Name: "s", Value: "1"})
		if r.URL.Path == "/" {
			http.Redirect(rw, r, "/end", http.StatusFound)
		}
	}))
	for range 2 {
		if _, err := w.get(t, Card, "https://a.example/", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TR-8: the codes, by name; the first three say that nothing was sent.
func TestCodes(t *testing.T) {
	want := []Code{"policy_denied", "invalid_url", "destination_refused", "timeout", "network", "too_large", "aborted", "too_many_redirects", "redirect_not_allowed", "rate_limited"}
	got := []Code{PolicyDenied, InvalidURL, DestinationRefused, Timeout, Network, TooLarge, Aborted, TooManyRedirects, RedirectNotAllowed, RateLimited}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	w := newWorld(t, public, http.NotFoundHandler())
	w.client.cfg.Policy = func(_ context.Context, u *url.URL) error {
		if u.Hostname() == "b.example" {
			return errors.New("not b")
		}
		return nil
	}
	for to, code := range map[string]Code{"https://b.example/": PolicyDenied, "http://a.example/": InvalidURL, "https://internal.example/": DestinationRefused} {
		_, err := w.client.Do(t.Context(), Request{Purpose: Message, Method: "POST", URL: to, Body: []byte("x")})
		wantCode(t, err, code, false)
	}
	if len(w.dialled) != 0 {
		t.Errorf("dialled %v", w.dialled)
	}
}
