package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// startBare starts this program again as the bare handler, and returns where it
// listens.
func startBare(b *bench, header http.Header, body []byte) string {
	self, err := os.Executable()
	if err != nil {
		b.Fatalf("%v", err)
	}
	data, err := json.Marshal(bareAnswer{header, body})
	if err != nil {
		b.Fatalf("%v", err)
	}
	file := filepath.Join(b.TempDir(), "answer.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		b.Fatalf("%v", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), bareHandler+"="+file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatalf("%v", err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatalf("%v", err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() // killed: how it ended says nothing
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("the bare handler: %v", err)
	}
	return strings.TrimSpace(line)
}

func sortDurations(list []time.Duration) { slices.Sort(list) }
