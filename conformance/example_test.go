package conformance_test

import (
	"context"
	"fmt"

	"github.com/pactsigner/pactsigner/conformance"
	"github.com/pactsigner/pactsigner/sandbox"
)

// A Provider's own test can run the suite, or a part of it, against what it starts.
func ExampleRun() {
	s, err := sandbox.New(sandbox.Config{PasswordMemory: 64})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	s.Start()
	ready := s.Ready()

	results, err := conformance.Run(context.Background(), conformance.Config{
		Cards:    []string{ready.Brands[0].Card, ready.Brands[1].Card},
		Audience: ready.Audience,
		Only:     []string{"card", "auth-expired"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		fmt.Println(r.Status, r.ID)
	}
	// Output:
	// passed card-served
	// passed card-redirects
	// passed card-unknown-brand
	// passed card-fields
	// passed card-interface
	// passed card-identity
	// passed card-capabilities
	// passed card-delegation
	// passed card-origins
	// passed auth-expired
}
