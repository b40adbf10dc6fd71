package signer_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// What is refused for its headers is refused before its body has come.
func TestRefusedBeforeTheBody(t *testing.T) {
	w := newContractWorld(t)
	host := strings.TrimPrefix(w.base, "http://")
	for _, c := range []struct {
		head string
		want int
	}{
		{"POST /pact/sign HTTP/1.1\r\nContent-Type: text/plain\r\n", http.StatusBadRequest},
		{"POST /pact/sign HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n", http.StatusBadRequest},
		{"PUT /pact/sign HTTP/1.1\r\nContent-Type: application/json\r\n", http.StatusMethodNotAllowed},
		{"POST /pact/none HTTP/1.1\r\n", http.StatusNotFound},
		{"POST /livez HTTP/1.1\r\n", http.StatusMethodNotAllowed},
		{"POST /.well-known/jwks.json HTTP/1.1\r\n", http.StatusMethodNotAllowed},
	} {
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
			t.Errorf("%q: %d, close %v; want %d and the end of the connection", c.head, resp.StatusCode, resp.Close, c.want)
		}
	}
}

// A connection whose request was read goes on, refused or not.
func TestReadBodyKeepsTheConnection(t *testing.T) {
	w := newContractWorld(t)
	host := strings.TrimPrefix(w.base, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	replies := bufio.NewReader(conn)
	for _, body := range []string{"{}", goodSign, "{"} {
		fmt.Fprintf(conn, "POST /pact/sign HTTP/1.1\r\nContent-Type: application/json\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body)
		resp, err := http.ReadResponse(replies, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || resp.Close {
			t.Errorf("%s: %d, close %v", body, resp.StatusCode, resp.Close)
		}
	}
}
