package custodytest

import (
	"testing"

	"github.com/pactsigner/pactsigner/custody"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) func() custody.Keyring {
		m := NewMemory()
		return func() custody.Keyring { return m }
	})
}
