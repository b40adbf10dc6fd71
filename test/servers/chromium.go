package servers

import (
	"errors"
	"os/exec"
)

// Chromium is where the system's Chromium is, or another browser made of it. The
// error says what to install.
func Chromium() (string, error) {
	for _, program := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(program); err == nil {
			return path, nil
		}
	}
	return "", errors.New("servers: Chromium is not installed: run `go run ./test/servers/get` as root, or install the package chromium, or Google Chrome")
}
