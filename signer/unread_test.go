package signer_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// What is refused for its headers is refused before its body has come.
func TestRefusedBeforeTheBody(t *testing.T) {
	w := newContractWorld(t)
	host := strings.TrimPrefix(w.base, "http://")
	for want, head := range map[int]string{
		http.StatusBadRequest:       "POST /pact/sign HTTP/1.1\r\nContent-Type: text/plain\r\n",
		http.StatusMethodNotAllowed: "PUT /pact/sign HTTP/1.1\r\nContent-Type: application/json\r\n",
	} {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%sHost: %s\r\nContent-Length: 100\r\n\r\n", head, host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil) // the body never comes
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || !resp.Close {
			t.Errorf("%d, close %v; want %d and the end of the connection", resp.StatusCode, resp.Close, want)
		}
	}
}
