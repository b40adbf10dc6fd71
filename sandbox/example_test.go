package sandbox_test

import (
	"fmt"
	"log"
	"net/http/httptest"

	"github.com/pactsigner/pactsigner/sandbox"
)

// A sandbox on free loopback ports.
func Example() {
	s, err := sandbox.New(sandbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	defer func() { _ = s.Close() }()
	for _, b := range s.Ready().Brands {
		fmt.Println(b.Name)
	}
	// Output:
	// Larkline Air
	// Marrow Books
}

// The handlers serve without sockets too, under the URLs that they are told.
func ExampleSandbox_Provider() {
	s, err := sandbox.New(sandbox.Config{PublicURL: "https://provider.example", BrandURL: "https://larkline.example"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	w := httptest.NewRecorder()
	s.BrandSite().ServeHTTP(w, httptest.NewRequest("GET", "/.well-known/agent-card.json", nil))
	fmt.Println(w.Code, w.Header().Get("Location"))
	w = httptest.NewRecorder()
	s.Provider().ServeHTTP(w, httptest.NewRequest("POST", "/a2a/"+sandbox.LarklineID+"/message:send", nil))
	fmt.Println(w.Code, w.Header().Get("WWW-Authenticate"))
	// Output:
	// 302 https://provider.example/a2a/01M8F2XW4QK7Z3V9TB5RC0HARK/.well-known/agent-card.json
	// 401 Bearer realm="a2a"
}
