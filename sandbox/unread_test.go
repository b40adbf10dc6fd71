package sandbox

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// What is refused before its body is read is refused before the body has come.
func TestRefusedBeforeTheBody(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Params = Defaults()
		c.Params.UserLimit.Burst = 1
	})
	known := "Authorization: Bearer " + w.token() + "\r\n"
	w.call(http.MethodGet, w.url(MarrowID, "tasks"), "") // the one call that is free
	send, provider := "/a2a/"+LarklineID+"/message:send", w.ready.Provider
	for _, c := range []struct {
		origin, head string
		want         int
	}{
		{provider, "POST " + send + " HTTP/1.1\r\n", http.StatusUnauthorized},
		{provider, "POST " + send + " HTTP/1.1\r\n" + known, http.StatusTooManyRequests},
		{provider, "PUT " + send + " HTTP/1.1\r\n" + known, http.StatusMethodNotAllowed},
		{provider, "POST /a2a/" + LarklineID + "/message:other HTTP/1.1\r\n", http.StatusNotFound},
		{provider, "POST /a2a/" + LarklineID + "/oauth/token HTTP/1.1\r\n", http.StatusUnauthorized},
		{provider, "POST /nothing HTTP/1.1\r\n", http.StatusNotFound},
		{provider, "POST " + platformsPath + " HTTP/1.1\r\n", http.StatusUnauthorized},
		{provider, "GET " + platformsPath + " HTTP/1.1\r\n", http.StatusMethodNotAllowed},
		{provider, "POST /a2a/" + LarklineID + "/oauth/consent HTTP/1.1\r\nOrigin: https://evil.example\r\n", http.StatusForbidden},
		{w.sandbox.brandURL, "POST /nothing HTTP/1.1\r\n", http.StatusNotFound},
		{w.sandbox.brandURL, "PUT " + loginPath + " HTTP/1.1\r\n", http.StatusMethodNotAllowed},
	} {
		host := strings.TrimPrefix(c.origin, "http://")
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%sHost: %s\r\nContent-Length: 100\r\n\r\n", c.head, host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil) // the body never comes
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want || !resp.Close {
			line, _, _ := strings.Cut(c.head, "\r\n")
			t.Errorf("%s: %d, close %v; want %d and the end of the connection", line, resp.StatusCode, resp.Close, c.want)
		}
	}
}

// A connection whose request was read goes on, refused or not.
func TestReadBodyKeepsTheConnection(t *testing.T) {
	w := newWorld(t)
	host := strings.TrimPrefix(w.ready.Provider, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	replies := bufio.NewReader(conn)
	for _, body := range []string{"{", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"Hi?"}]}}`} {
		fmt.Fprintf(conn, "POST /a2a/%s/message:send HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", MarrowID, host, w.token(), len(body), body)
		resp, err := http.ReadResponse(replies, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusUnauthorized || resp.Close {
			t.Errorf("%s: %d, close %v", body, resp.StatusCode, resp.Close)
		}
	}
}
