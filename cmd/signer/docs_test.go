package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every command of the signer's that a page names is one, and so is every flag that
// goes with it.
func TestDocsCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../../README.md", "../../deploy/systemd/signer.service")
	root, found := (&app{stdout: io.Discard, stderr: io.Discard}).rootCmd(), 0
	for _, name := range pages {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(page), "\\\n", " ") // a command that goes on in the next line
		for _, m := range signerCommand.FindAllStringSubmatch(text, -1) {
			found++
			line, _, _ := strings.Cut(m[1], " #")
			words := strings.Fields(line)
			n := slices.IndexFunc(words, func(w string) bool { return !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(w) })
			if n < 0 {
				n = len(words)
			}
			cmd, rest, err := root.Find(words[:n])
			if err != nil || len(rest) > 0 {
				t.Errorf("%s: signer %s is no command", name, strings.Join(words[:n], " "))
				continue
			}
			for _, w := range words[n:] {
				flag, ok := strings.CutPrefix(w, "--")
				if flag, _, _ = strings.Cut(strings.TrimRight(flag, ",.;)"), "="); ok && flag != "insecure-…" && cmd.Flags().Lookup(flag) == nil {
					t.Errorf("%s: %s has no --%s", name, cmd.CommandPath(), flag)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d commands were found", found)
	}
}

// signerCommand is one as a page has it: in backquotes, or a line of a block, after
// what sets its environment.
var signerCommand = regexp.MustCompile("(?m)(?:`|^\\s*(?:[A-Z_]+=\\S+ )*|ExecStart=/usr/local/bin/)signer ((?:config|init|redis|retire-issuer|serve|token|vault|version)\\b[^`\n|>]*)")
