package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/bubble"
)

// A keyring that waits for somebody does not hold a command up.
func TestKeyringSilent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		began := time.Now()
		_, err := bounded(func() (string, error) { <-hold; return "", nil })
		if !errors.Is(err, errKeyringSilent) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if text, err := bounded(func() (string, error) { time.Sleep(4 * time.Second); return "x", nil }); text != "x" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	})
}
