package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The recipe for production makes every Secret and ConfigMap that its pods mount, with
// the keys that they take from it.
func TestRecipeMakesTheSecrets(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^ *kubectl -n pact create (secret generic|secret tls|configmap) (\S+)(.*)$`).FindAllStringSubmatch(string(page), -1) {
		kind := strings.Fields(m[1])[0]
		if m[1] == "secret tls" {
			made[kind+" "+m[2]] = []string{"tls.crt", "tls.key"}
		}
		for _, file := range regexp.MustCompile(`--from-file=([^= ]+)`).FindAllStringSubmatch(m[3], -1) {
			made[kind+" "+m[2]] = append(made[kind+" "+m[2]], file[1])
		}
	}
	found := 0
	for _, p := range render(t, production).pods() {
		for _, volume := range list(p.spec, "volumes") {
			for _, source := range list(volume, "projected", "sources") {
				for _, kind := range []string{"secret", "configMap"} {
					from := strings.ToLower(kind) + " " + fmt.Sprint(at(source, kind, "name"))
					for _, item := range list(source, kind, "items") {
						if found++; !slices.Contains(made[from], at(item, "key").(string)) {
							t.Errorf("%s mounts %v of %s, which has %v", p.of.kindName(), at(item, "key"), from, made[from])
						}
					}
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d were found", found)
	}
}

// What pods run, what NOTES.txt says to do next, and what the chart's README shows are
// commands that exist, with flags that they have.
func TestChartCommands(t *testing.T) {
	t.Parallel()
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
