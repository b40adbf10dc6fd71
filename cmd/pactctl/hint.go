package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// hints completes the commands that texts of ours name: with the flags that chose the
// agent, so that what is pasted works with the same one.
type hints struct {
	root *cobra.Command
	// given are those flags as this command was given them, quoted for a shell: pairs of
	// a name and its value.
	given [][2]string
	// serve is how the agent that was meant is started; empty: by the profile's flag alone.
	serve string
	// blank stands in a command for blanks; empty: they do.
	blank string
}

// unbroken stands for a blank at which no line is broken.
const unbroken = "\x00"

// agentFlags are the flags that choose an agent.
var agentFlags = []string{"profile", "remote", "remote-token-file"}

// hintsFor are those of a command line that was parsed.
func hintsFor(cmd *cobra.Command) hints {
	h := hints{root: cmd.Root()}
	top := cmd
	for top.HasParent() && top.Parent() != h.root {
		top = top.Parent()
	}
	if top.GroupID != groupAgent { // elsewhere they mean something else, or nothing
		return h
	}
	for _, name := range agentFlags {
		if f := cmd.Flag(name); f != nil && f.Changed {
			h.given = append(h.given, [2]string{name, shellQuoted(f.Value.String())})
		}
	}
	return h
}

// commandNamed is a command of ours in a text, or a stretch in quotation marks, which
// is somebody else's word.
var commandNamed = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\bpactctl( [a-z][a-z-]*)+`)

// chosen is what a command goes on with that says itself which agent it is for.
var chosen = regexp.MustCompile(`^ --(profile|remote|listen|socket)\b`)

// text puts the flags behind each command that takes them. It is for texts of our own:
// never for what a business or the owner wrote.
func (h hints) text(s string) string {
	if h.root == nil || len(h.given) == 0 && h.serve == "" {
		return s
	}
	var b strings.Builder
	last := 0
	for _, at := range commandNamed.FindAllStringIndex(s, -1) {
		if s[at[0]] == '"' {
			continue
		}
		cmd, end := h.root, at[0]+len("pactctl")
		for rest := s[end:at[1]]; rest != ""; {
			word, more, _ := strings.Cut(rest[1:], " ")
			sub := subcommand(cmd, word)
			if sub == nil {
				break
			}
			cmd, end = sub, end+1+len(word)
			if rest = ""; more != "" {
				rest = " " + more
			}
		}
		flags := h.flags(cmd)
		if flags == "" || chosen.MatchString(s[end:]) {
			continue
		}
		b.WriteString(s[last:at[0]])
		b.WriteString(strings.ReplaceAll(s[at[0]:end]+flags, " ", or(h.blank, " ")))
		last = end
	}
	return b.String() + s[last:]
}

// format is text for a format, with commands that stay on one line.
func (h hints) format(s string) string {
	if len(h.given) == 0 && h.serve == "" || !strings.Contains(s, "pactctl ") {
		return s
	}
	escaped := hints{root: h.root, blank: unbroken, serve: strings.ReplaceAll(h.serve, "%", "%%")}
	for _, f := range h.given {
		escaped.given = append(escaped.given, [2]string{f[0], strings.ReplaceAll(f[1], "%", "%%")})
	}
	return escaped.text(s)
}

func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, sub := range cmd.Commands() {
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
	}
	return nil
}

// flags are those that a command takes, of the ones that were given.
func (h hints) flags(cmd *cobra.Command) string {
	if cmd.CommandPath() == "pactctl agent serve" && h.serve != "" {
		return h.serve
	}
	out := ""
	for _, f := range h.given {
		if cmd != h.root && cmd.Flag(f[0]) != nil {
			out += " --" + f[0] + " " + f[1]
		}
	}
	return out
}

// hintsElsewhere are for texts that are read on another terminal, whose environment is not
// this one's: they name what the environment chose here. An address is not named: it wants
// a token, which who gives the owner's word need not have.
func (p *profile) hintsElsewhere(at place) hints {
	h := hints{root: p.app.hints.root, serve: p.app.hints.serve}
	switch {
	case strings.HasPrefix(at.target, unixTarget):
		h.given = [][2]string{{"remote", shellQuoted(at.target)}}
	case at.target != "":
	case p.dir != "" || os.Getenv("PACT_PROFILE") != "" || os.Getenv("XDG_DATA_HOME") != "":
		h.given = [][2]string{{"profile", shellQuoted(at.dir)}}
	}
	return h
}

// serveThere is how an agent is started that is reached at a target.
func serveThere(target string) string {
	path, socket := strings.CutPrefix(target, unixTarget)
	switch {
	case !socket:
		return " --listen " + strings.TrimPrefix(target, "http://")
	case filepath.Base(path) == serveSocket:
		return " --profile " + shellQuoted(filepath.Dir(path))
	}
	return " --socket " + shellQuoted(path)
}

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_%+=:,./@-]+$`)

// shellQuoted is a word as it is written in a shell.
func shellQuoted(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
