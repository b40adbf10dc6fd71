package fleet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Binaries are the programs under test.
type Binaries struct{ Signer, Pactctl string }

// build makes the binaries once for a process.
var build = sync.OnceValues(func() (Binaries, error) {
	dir, err := os.MkdirTemp("", "pact-fleet-")
	if err != nil {
		return Binaries{}, err
	}
	buildDir = dir
	const module = "github.com/pactsigner/pactsigner/"
	out, err := exec.Command("go", "build", "-o", dir, module+"cmd/signer", module+"cmd/pactctl").CombinedOutput()
	if err != nil {
		return Binaries{}, fmt.Errorf("build the programs: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return Binaries{filepath.Join(dir, "signer"), filepath.Join(dir, "pactctl")}, nil
})

// buildDir is where they are.
var buildDir string

// Clean removes the binaries that this process has built. Call it at its end.
func Clean() error {
	if buildDir == "" {
		return nil
	}
	return os.RemoveAll(buildDir)
}

// Build builds the programs, if this process has not yet.
func Build(t T) {
	t.Helper()
	built(t)
}

func built(t T) Binaries {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

// Signer runs the signer with arguments until it ends, and returns what it printed.
func Signer(t T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(built(t).Signer, args...).CombinedOutput()
	return string(out), err
}
