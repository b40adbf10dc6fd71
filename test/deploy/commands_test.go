package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What pods run, what NOTES.txt says to do next, and what the chart's README shows are
// commands that exist, with flags that they have.
func TestChartCommands(t *testing.T) {
	p := build(t)
	check := func(where string, words []string) {
		t.Helper()
		if err := p.check(words); err != nil {
			t.Errorf("%s: %s: %v", where, strings.Join(words, " "), err)
		}
	}
	found := 0
	lines := func(where string, text []string) {
		t.Helper()
		for _, line := range text {
			commands, err := splitShell(line)
			if err != nil {
				t.Errorf("%s: %s: %v", where, line, err)
			}
			for _, words := range commands {
				if i := slices.Index(words, "--"); words[0] == "kubectl" && i > 0 {
					words = words[i+1:]
				}
				if words[0] == "signer" || words[0] == "pactctl" {
					found++
					check(where, words)
				}
			}
		}
	}
	for _, v := range variants {
		for _, pod := range render(t, v).pods() {
			c := list(pod.spec, "containers")[0]
			words := []string{"signer"}
			if command := at(c, "command", 0); command != nil {
				words = []string{strings.TrimPrefix(command.(string), "/")}
			}
			for _, arg := range list(c, "args") {
				words = append(words, arg.(string))
			}
			check(v.name+", "+pod.of.kindName(), words)
		}
	}
	for _, v := range append(named, bare) {
		var said []string
		for line := range strings.Lines(notes(t, v)) {
			if command, ok := strings.CutPrefix(line, "  "); ok {
				said = append(said, strings.TrimSuffix(strings.TrimSpace(command), " &"))
			}
		}
		lines("NOTES.txt, "+v.name, said)
	}
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines("README.md", commandLines(string(readme)))
	if found < 10 {
		t.Errorf("only %d commands were found", found)
	}
}
