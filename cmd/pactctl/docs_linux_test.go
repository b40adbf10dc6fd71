package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/sandbox/person"
)

// TestDocsSessions runs every command of the sessions in docs/agent.md on a real
// terminal, against a real signer and a sandbox, and holds what stands on the terminal to
// the page, byte for byte but for names that are drawn anew each time. With -update it
// rewrites them.
func TestDocsSessions(t *testing.T) {
	page, err := os.ReadFile(agentPage)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	names := newPageNames(b)
	for names == nil { // ports of another length, where the system has such
		b = newBench(t)
		names = newPageNames(b)
	}
	dir := homeLike(t, pageHome)
	if err := os.WriteFile(filepath.Join(dir, "control.token"), []byte(b.box.Control.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	names.pairs = append(names.pairs, dir, pageHome)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	code := 0
	got := sessions.ReplaceAllStringFunc(string(page), func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		for _, s := range commandsOf(block) {
			fmt.Fprintf(&out, "$ %s\n", s.line)
			if s.line == "echo $?" {
				fmt.Fprintf(&out, "%d\n", code)
				continue
			}
			args := shellWords(names.actual(s.line))
			if len(args) == 0 || args[0] != "pactctl" {
				t.Errorf("%q is no command of pactctl: do not show it in a session", s.line)
				continue
			}
			var seen string
			terminal := sitting{
				columns: 80, lines: 50, dir: dir, answers: s.answers,
				env: []string{
					"PATH=" + os.Getenv("PATH"), "HOME=" + dir,
					"TZ=UTC", "TERM=xterm", "PACT_KEYRING=off", "GORACE=atexit_sleep_ms=0",
					"PACT_SERVER=" + b.info.Admin, "PACT_TOKEN_FILE=" + b.info.AdminTokenFile,
				},
				onLink: func(link string) {
					if _, err := (person.Person{Login: b.box.Login}).AllowAll(context.Background(), link); err != nil {
						t.Errorf("%s: sign in: %v", s.line, err)
					}
				},
			}
			if strings.Contains(s.output, "[y/N]\nDecided elsewhere.\n") {
				terminal.elsewhere = func() { approveElsewhere(ctx, t, terminal) }
			}
			code, seen, _ = terminal.run(ctx, t, args[1:]...)
			shown := names.canonical(onGlass(seen))
			if !*update && shown != s.output {
				t.Errorf("$ %s\nprinted\n%s\nand the page has\n%s", s.line, shown, s.output)
			}
			out.WriteString(shown)
		}
		out.WriteString("```\n")
		return out.String()
	})
	if *update {
		if err := os.WriteFile(agentPage, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// approveElsewhere approves, at another terminal, what the one waits for.
func approveElsewhere(ctx context.Context, t *testing.T, at sitting) {
	t.Helper()
	at.pipe, at.elsewhere = true, nil
	_, _, listed := at.run(ctx, t, "approvals", "list", "-o", "json")
	var v struct{ Approvals []agent.ApprovalView }
	if err := json.Unmarshal([]byte(listed), &v); err != nil || len(v.Approvals) != 1 {
		t.Fatalf("%d approvals wait (%v)", len(v.Approvals), err)
	}
	if code, terminal, piped := at.run(ctx, t, "approvals", "approve", v.Approvals[0].ID, "--yes"); code != 0 || !strings.Contains(piped, "is approved: the operation that asked goes on") {
		t.Errorf("approved elsewhere: exit %d\n%s%s", code, terminal, piped)
	}
}

// homeLike makes a folder whose path is as long as another, so that lines break alike.
func homeLike(t *testing.T, path string) string {
	t.Helper()
	for range 100 {
		dir := "/tmp/" + strings.ToLower(rand.Text()[:len(path)-len("/tmp/")])
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
		if !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	t.Fatal("no free name in /tmp")
	return ""
}

var sessions = regexp.MustCompile("(?ms)^```console\n.*?^```\n")

// pageCommand is a command of a session, and what it prints.
type pageCommand struct {
	line    string // without the prompt, with its line breaks
	output  string
	answers []string // that are typed at its questions
}

var typed = regexp.MustCompile(`(?m)\[y/N\] (\S*)$`)

func commandsOf(block string) (all []pageCommand) {
	more := false
	for line := range strings.Lines(strings.TrimSuffix(strings.TrimPrefix(block, "```console\n"), "```\n")) {
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case begins:
			all = append(all, pageCommand{line: command})
		case len(all) == 0:
			continue
		case more:
			all[len(all)-1].line += line
		default:
			all[len(all)-1].output += line
		}
		more = (begins || more) && strings.HasSuffix(line, "\\\n")
	}
	for i := range all {
		c := &all[i]
		c.line = strings.TrimSuffix(c.line, "\n")
		for _, m := range typed.FindAllStringSubmatch(c.output, -1) {
			c.answers = append(c.answers, m[1])
		}
	}
	return all
}

// shellWords are the words of a command line: blanks part them, quotes hold them
// together, a backslash at a line's end goes on.
func shellWords(line string) (words []string) {
	word, open, quote := "", false, rune(0)
	for _, r := range strings.ReplaceAll(line, "\\\n", " ") {
		switch {
		case r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, open = r, true
		case quote == 0 && (r == ' ' || r == '\n'):
			if open {
				words = append(words, word)
			}
			word, open = "", false
		default:
			word, open = word+string(r), true
		}
	}
	if open {
		words = append(words, word)
	}
	return words
}

// pageNames translates what is drawn anew each time to what the page says instead, and
// back. What it says instead depends only on which of its kind it is, the first or the
// second, and is as long.
type pageNames struct {
	pairs []string // actual, page, …
	count map[string]int
}

// What the page has instead, as long as that.
const (
	pageHome     = "/home/ada"
	pageSigner   = "127.0.0.1:48787"
	pageProvider = "127.0.0.1:48900"
	pageBrand    = "127.0.0.1:48901"
)

// newPageNames is nil if the ports are not as long as the page's.
func newPageNames(b *bench) *pageNames {
	n := &pageNames{count: map[string]int{}}
	for raw, page := range map[string]string{b.signer: pageSigner, b.box.Provider: pageProvider, b.box.Brands[0].Card: pageBrand} {
		u, err := url.Parse(raw)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(u.Host) != len(page) {
			return nil
		}
		n.pairs = append(n.pairs, u.Host, page, url.QueryEscape(u.Host), url.QueryEscape(page))
	}
	return n
}

// drawn are the names that are drawn anew each time, by kind.
var drawn = []struct {
	kind string
	is   *regexp.Regexp
}{
	{"id", regexp.MustCompile(`\b(?:c|m|r|grant|signin|approval|key)-[a-z2-7]{16}\b|\bb-[0-9a-f]{16}\b`)},
	{"subject", regexp.MustCompile(`\bpa_[a-z2-7]{32}\b`)},
	{"uuid", regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)},
	{"hex", regexp.MustCompile(`\b[0-9a-f]{64}\b`)},
	{"thumbprint", regexp.MustCompile(`(?:^|[^\w-])([\w-]{43})(?:$|[^\w-])`)},
	{"usercode", regexp.MustCompile(`\b[B-DF-HJ-NP-TV-XZ]{4}-[B-DF-HJ-NP-TV-XZ]{4}\b`)},
	{"booking", regexp.MustCompile(`\bLK[B-DF-HJ-NP-TV-XZ]{4}\b`)},
}

// moments are times, for each of which the page has the same one.
var moments = []struct {
	is   *regexp.Regexp
	page string
}{
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-03-14T15:09:26Z"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-03-14 15:09:26"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d \d\d:\d\d\b`), "2026-03-14 15:09"},
	{regexp.MustCompile(`\buntil \d\d:\d\d:\d\d UTC`), "until 15:19:26 UTC"},
	{regexp.MustCompile(`\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{1,2} [A-Z][a-z]{2} \d{4}\b`), "Mon 23 Mar 2026"},
	// How long ago it was, and how long there is still, is a little more or less by how long
	// the commands take.
	{regexp.MustCompile(`\((now|\d{1,2}[sm] ago)\)`), "(2s ago)"},
	{regexp.MustCompile(`, (now|\d{1,2}[sm] ago)`), ", 2s ago"},
	{regexp.MustCompile(`\bended (now|\d{1,2}[sm] ago)`), "ended 2s ago"},
	{regexp.MustCompile(`\(in 4m\)`), "(in 5m)"},
	{regexp.MustCompile(`\(in 5[5-9]m\)`), "(in 1h)"},
	{regexp.MustCompile(`\bexpires in 5[5-9]m\b`), "expires in 1h"},
}

// canonical is what the page says for a text that was printed.
func (n *pageNames) canonical(text string) string {
	for _, d := range drawn {
		for _, m := range d.is.FindAllStringSubmatch(text, -1) {
			n.learn(d.kind, m[len(m)-1])
		}
	}
	text = strings.NewReplacer(n.pairs...).Replace(text)
	for _, m := range moments {
		text = m.is.ReplaceAllString(text, m.page)
	}
	return text
}

// actual is the command that the page means.
func (n *pageNames) actual(text string) string {
	swapped := make([]string, len(n.pairs))
	for i := 0; i < len(n.pairs); i += 2 {
		swapped[i], swapped[i+1] = n.pairs[i+1], n.pairs[i]
	}
	return strings.NewReplacer(swapped...).Replace(text)
}

func (n *pageNames) learn(kind, actual string) {
	for i := 0; i < len(n.pairs); i += 2 {
		if n.pairs[i] == actual {
			return
		}
	}
	prefix := ""
	if kind == "id" {
		prefix, _, _ = strings.Cut(actual, "-")
		prefix += "-"
	}
	n.count[kind+prefix]++
	sum := sha256.Sum256([]byte(kind + prefix + strconv.Itoa(n.count[kind+prefix])))
	small := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))
	letters := make([]byte, 8)
	for i := range letters {
		letters[i] = "BCDFGHJKLMNPQRSTVWXZ"[sum[i]%20]
	}
	if prefix == "b-" {
		small = hex.EncodeToString(sum[:])
	}
	page := map[string]string{
		"id": prefix + small[:16], "subject": "pa_" + small[:32], "uuid": uuid.UUID(sum[:16]).String(), "hex": hex.EncodeToString(sum[:]),
		"thumbprint": base64.RawURLEncoding.EncodeToString(sum[:]), "usercode": string(letters[:4]) + "-" + string(letters[4:]), "booking": "LK" + string(letters[:4]),
	}[kind]
	n.pairs = append(n.pairs, actual, page)
}
