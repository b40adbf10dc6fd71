package deploy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/test/servers"
)

// pages are the runbooks by their file's name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = string(text)
	}
	if len(all) < 30 {
		t.Fatalf("only %d runbooks were found", len(all))
	}
	return all
}

// The index has every runbook, each runbook of an alert has its alert, with the
// severities that the index names, and all are in the one form.
func TestRunbooksAreWhole(t *testing.T) {
	severities := map[string][]string{}
	for _, a := range readAlerts(t) {
		page := filepath.Base(a.Annotations["runbook_url"])
		severities[page] = append(severities[page], a.Labels["severity"])
	}
	form := []string{"What it means", "Who is hurt", "How to look", "What to do", "How to know that it is over", "What not to do"}
	heading := regexp.MustCompile(`(?m)^## (.*)$`)
	all := pages(t)
	index := all["README.md"]
	for name, text := range all {
		if name == "README.md" {
			continue
		}
		if !strings.Contains(index, "]("+name+")") {
			t.Errorf("README.md does not link %s", name)
		}
		if strings.HasPrefix(name, "pact-signer-") && severities[name] == nil {
			t.Errorf("%s: there is no such alert", name)
		}
		for _, s := range severities[name] {
			if row := regexp.MustCompile(`(?m)^\| \[\w+\]\(` + regexp.QuoteMeta(name) + `\) \| ([^|]*) \|`).FindStringSubmatch(index); row == nil || !strings.Contains(row[1], s) {
				t.Errorf("README.md does not say that %s can be %s", name, s)
			}
		}
		var got []string
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		if !slices.Equal(got, form) {
			t.Errorf("%s: its parts are %q, want %q", name, got, form)
		}
	}
}

// What a runbook links to is there.
func TestRunbookLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[a-z0-9-]*)?\)`)
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file := filepath.Join(runbooks, m[1])
			if m[1] == "" {
				file = filepath.Join(runbooks, name)
			}
			there, err := os.ReadFile(file)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(string(there)), m[2]) {
				t.Errorf("%s: %s has no heading %s", name, m[1], m[2])
			}
		}
		for _, a := range regexp.MustCompile(`\bPactSigner\w+`).FindAllString(text, -1) {
			if !slices.ContainsFunc(readAlerts(t), func(r alertRule) bool { return r.Alert == a }) {
				t.Errorf("%s: there is no alert %s", name, a)
			}
		}
	}
}

// A panel that a runbook sends somebody to is on the dashboard.
func TestRunbookPanels(t *testing.T) {
	titles, found := map[string]bool{}, 0
	for _, p := range readDashboard(t).Panels {
		titles[p.Title] = true
	}
	for name, text := range pages(t) {
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			if !strings.Contains(paragraph, "dashboard") {
				continue
			}
			for _, m := range regexp.MustCompile(`(?:^|[^*])\*([A-Z][^*]+)\*(?:[^*]|$)`).FindAllStringSubmatch(paragraph, -1) {
				if found++; !titles[strings.Join(strings.Fields(m[1]), " ")] {
					t.Errorf("%s: the dashboard has no panel %s", name, m[1])
				}
			}
		}
	}
	if found < 15 {
		t.Errorf("only %d were found", found)
	}
}

// anchors are the links to a page's headings.
func anchors(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		slug := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		all = append(all, "#"+regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(slug, ""))
	}
	return all
}

// Every command that a runbook shows is one: those of ours by the programs themselves,
// with their flags and arguments, the others by a list of what the pages may use. And
// what is wrong with one is found.
func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	p := build(t)
	t.Run("pages", func(t *testing.T) { checkPages(t, p) })
	t.Run("mistakes", func(t *testing.T) { checkMistakes(t, p) })
}

func checkPages(t *testing.T, p programs) {
	found := 0
	for name, text := range pages(t) {
		for _, line := range commandLines(text) {
			commands, err := splitShell(line)
			if err != nil {
				t.Errorf("%s: %s: %v", name, line, err)
				continue
			}
			for _, words := range commands {
				found++
				if err := p.check(words); err != nil {
					t.Errorf("%s: %s: %v", name, strings.Join(words, " "), err)
				}
			}
		}
	}
	if found < 200 {
		t.Errorf("only %d commands were found", found)
	}
}

func checkMistakes(t *testing.T, p programs) {
	for line, want := range map[string]string{
		`pactctl kill --all --reason "incident 1" --for 2h`:         "",
		`pactctl kill status --wait EPOCH`:                          "",
		`pactctl audiences set https://provider.example.com AUD`:    "",
		`kubectl -n pact exec deploy/pact-signer -- signer version`: "",
		`pactctl stop now`:                                        "is no command",
		`pactctl stop --all`:                                      "unknown flag",
		`pactctl kill stat`:                                       "is no command",
		`pactctl kill --everything --reason x`:                    "unknown flag",
		`pactctl kill --all`:                                      "needs --reason",
		`pactctl kill --all --reason x --for soon`:                "invalid argument",
		`pactctl audiences set https://provider.example.com`:      "1 arguments",
		`pactctl rotate now`:                                      "1 arguments",
		`signer vault check --conf signer.yaml`:                   "unknown flag",
		`signer init twice`:                                       "1 arguments",
		`kubectl -n pact exec deploy/pact-signer -- pactctl flee`: "is no command",
		`kubectl -n pact delete pvc data`:                         "pvc",
		`kubectl -n other get pods`:                               "namespace",
		`kubectl get deploy/pact-singer`:                          "pact-singer",
		`redis-cli FLUSHALL`:                                      "FLUSHALL",
		`vault delete transit/keys/x`:                             "delete",
		`helm -n pact upgrade pact-signer deploy/helm/signer`:     "deploy/helm/signer",
		`helm -n pact upgrade pact-signer deploy/helm/pact-signer --set init.addIssuer=true`: "init.addIssuer",
		`rm -rf /data`:          "rm",
		`pactctl "fleet status`: "quote",
	} {
		err := error(nil)
		commands, err := splitShell(line)
		for _, words := range commands {
			err = errors.Join(err, p.check(words))
		}
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// commandLines are the lines of a page's sh blocks, and what else it shows of the
// programs that operators use.
func commandLines(text string) (lines []string) {
	block := regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		if m[1] == "sh" {
			lines = append(lines, strings.Split(strings.ReplaceAll(m[2], "\\\n", ""), "\n")...)
		}
	}
	rest := strings.Join(strings.Fields(block.ReplaceAllString(text, "")), " ")
	for _, m := range regexp.MustCompile("`((?:pactctl|signer|kubectl|helm|vault|redis-cli|curl|systemctl|journalctl|openssl|chronyc|age) [^`]*)`").FindAllStringSubmatch(rest, -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// splitShell splits a line into commands, and these into words, as a shell does with
// what the pages use of it: quotes, comments, pipes, &, redirections, assignments.
func splitShell(line string) (commands [][]string, err error) {
	var words []string
	var word strings.Builder
	var quote rune
	in, skip := false, false
	end := func() {
		switch {
		case !in:
			return
		case skip:
			skip = false
		default:
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	command := func() {
		end()
		for len(words) > 0 && (words[0] == "export" || regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0])) {
			words = words[1:]
		}
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
loop:
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == '#' && !in:
			break loop
		case r == ' ':
			end()
		case r == '|' || r == '&' || r == ';':
			command()
		case r == '>' || r == '<':
			end()
			skip = true
		case r == '$' || r == '(' || r == '`':
			return nil, fmt.Errorf("%q: say a word in capitals instead", r)
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	command()
	return commands, nil
}

// programs are ours, built.
type programs struct {
	bin  string // where they are
	dir  string // where they run, and keep what they keep
	help map[string]string
}

// builtIn is where the programs are, once they are built.
var builtIn string

// buildOnce builds them once for all tests.
var buildOnce = sync.OnceValues(func() (bin string, err error) {
	bin, err = os.MkdirTemp("", "pact-deploy-")
	if err != nil {
		return "", err
	}
	builtIn = bin
	const module = "github.com/pactsigner/pactsigner/"
	out, err := exec.Command("go", "build", "-o", bin, module+"cmd/signer", module+"cmd/pactctl").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return bin, err
})

func build(t *testing.T) programs {
	t.Helper()
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return programs{bin, t.TempDir(), map[string]string{}}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		_ = os.RemoveAll(builtIn) // nothing depends on it
	}
	os.Exit(code)
}

// command runs one of them apart from what the user of this machine has configured.
func (p programs) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"HOME=" + p.dir, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// anywhere are programs of which the pages use nothing that could do harm.
var anywhere = []string{"curl", "grep", "tail", "base64", "openssl", "age", "chronyc", "journalctl"}

// check says what is wrong with a command.
func (p programs) check(words []string) error {
	switch words[0] {
	case "pactctl", "signer":
		return p.checkOurs(words)
	case "kubectl":
		return p.checkKubectl(words[1:])
	case "helm":
		return checkHelm(words[1:])
	case "vault":
		line := strings.Join(words[1:], " ") + " "
		for _, may := range []string{"status", "operator unseal", "operator raft snapshot save", "operator raft snapshot restore",
			"write auth/", "write -f -field=secret_id auth/approle/role/", "read auth/", "list auth/", "list transit/keys",
			"kv list", "policy write", "token revoke -mode=path", "token renew"} {
			if strings.HasPrefix(line, may) {
				return nil
			}
		}
		return fmt.Errorf("vault %s is not on the list", line)
	case "redis-cli":
		rest := words[1:]
		for len(rest) > 1 && (rest[0] == "-h" || rest[0] == "-p") {
			rest = rest[2:]
		}
		may := []string{"PING", "INFO", "DBSIZE", "ROLE", "TIME", "SLOWLOG", "SENTINEL", "REPLICAOF", "CONFIG", "ACL", "--latency", "--latency-history"}
		if len(rest) == 0 || !slices.Contains(may, rest[0]) {
			return fmt.Errorf("redis-cli %s is not on the list", strings.Join(rest, " "))
		}
		return nil
	case "systemctl":
		if len(words) == 3 && slices.Contains([]string{"status", "start", "stop", "restart"}, words[1]) && slices.Contains([]string{"signer", "chronyd"}, words[2]) {
			return nil
		}
		return errors.New("systemctl is for the units signer and chronyd")
	}
	if slices.Contains(anywhere, words[0]) {
		return nil
	}
	return fmt.Errorf("%s is not on the list", words[0])
}

var (
	usageLine = regexp.MustCompile(`(?m)^Usage:\n  (.*)$`)
	// A flag of the help, and what it takes: nothing of its own, or a word.
	flagLine = regexp.MustCompile(`(?m)^ {2,6}(?:-(\w), )?--([a-z-]+)(\[=true\|false\])?(?: (\S+))?(?:  +|$)`)
	another  = regexp.MustCompile(`^[a-z][a-z-]*$`) // a word that can be a command's
)

// checkOurs lets the program itself read its command line, by asking for its help, and
// then holds the words to what the help says.
func (p programs) checkOurs(words []string) error {
	args := slices.Clone(words[1:])
	for i := range args {
		if args[i] == "EPOCH" {
			args[i] = "7" // the only one that must be a number
		}
	}
	key := words[0] + "\x00" + strings.Join(args, "\x00")
	help, ok := p.help[key]
	if !ok {
		out, err := p.command(words[0], append(args, "--help")...).CombinedOutput()
		if err != nil {
			return errors.New(strings.TrimSpace(string(out)))
		}
		help = string(out)
		p.help[key] = help
	}
	m := usageLine.FindStringSubmatch(help)
	if m == nil {
		return errors.New("its help has no usage")
	}
	usage := strings.Fields(m[1])
	path, arguments := 0, 0
	for ; path < len(usage) && another.MatchString(usage[path]); path++ {
	}
	required := map[string]bool{}
	takes := map[string]bool{}
	flags := flagLine.FindAllStringSubmatchIndex(help, -1)
	for i, f := range flags {
		part := func(n int) string {
			if f[2*n] < 0 {
				return ""
			}
			return help[f[2*n]:f[2*n+1]]
		}
		end := len(help)
		if i+1 < len(flags) {
			end = flags[i+1][0]
		}
		name := part(2)
		takes["--"+name] = part(3) == ""
		if s := part(1); s != "" {
			takes["-"+s] = part(3) == ""
		}
		required[name] = strings.Contains(help[f[0]:end], "(required)")
	}
	var positional []string
	given := map[string]bool{}
	for i := 0; i < len(args); i++ {
		name, _, inline := strings.Cut(args[i], "=")
		switch {
		case args[i] == "-": // a pipe
			positional = append(positional, args[i])
		case strings.HasPrefix(args[i], "-"):
			given[strings.TrimLeft(name, "-")] = true
			if takes[name] && !inline {
				i++
			}
		default:
			positional = append(positional, args[i])
		}
	}
	positional = positional[min(path-1, len(positional)):]
	group := path == 1 || strings.Contains(help, "Available Commands:")
	if len(positional) > 0 && another.MatchString(positional[0]) && group {
		return fmt.Errorf("%s %s is no command", strings.Join(usage[:path], " "), positional[0])
	}
	for _, u := range usage[path:] {
		if !strings.HasPrefix(u, "[") && !strings.HasPrefix(u, "-") && usage[slices.Index(usage, u)-1] != "--name" {
			arguments++
		}
	}
	if len(positional) != arguments {
		return fmt.Errorf("has %d arguments; usage: %s", len(positional), m[1])
	}
	for name, must := range required {
		if must && !given[name] {
			return fmt.Errorf("needs --%s", name)
		}
	}
	return nil
}

// The names that the chart gives, with the release that the pages speak of.
var chartNames = []string{"deploy/pact-signer", "statefulset/pact-signer", "deploy/pact-signer-probe", "svc/pact-signer-admin"}

// checkKubectl holds a command to the verbs, kinds, names and flags that the pages use.
func (p programs) checkKubectl(words []string) error {
	if len(words) > 1 && words[0] == "-n" {
		if words[1] != "pact" {
			return fmt.Errorf("namespace %s", words[1])
		}
		words = words[2:]
	}
	verb := words[0]
	kinds := map[string][]string{
		"get": {"pods", "pod", "secret", "secrets", "events", "hpa"}, "describe": {"pod", "certificate"}, "delete": {"pod"}, "top": {"pods"},
		"logs": nil, "exec": nil, "port-forward": nil, "scale": nil, "cordon": nil, "rollout": {"status", "restart", "resume"},
	}
	may, known := kinds[verb]
	if !known {
		return fmt.Errorf("kubectl %s is not on the list", verb)
	}
	takes := []string{"-l", "-o"}
	alone := []string{"-i", "--previous", "--prefix", "--tail", "--since", "--sort-by", "--replicas", "--timeout"}
	var rest []string
	for i := 1; i < len(words); i++ {
		name, _, _ := strings.Cut(words[i], "=")
		switch {
		case words[i] == "--":
			return p.check(words[i+1:])
		case slices.Contains(takes, words[i]):
			i++
		case strings.HasPrefix(words[i], "-"):
			if !slices.Contains(alone, name) {
				return fmt.Errorf("kubectl %s: flag %s is not on the list", verb, name)
			}
		default:
			rest = append(rest, words[i])
		}
	}
	if may != nil && (len(rest) == 0 || !slices.Contains(may, rest[0])) {
		return fmt.Errorf("kubectl %s %s is not on the list", verb, strings.Join(rest, " "))
	}
	for _, r := range rest {
		if kind, name, ok := strings.Cut(r, "/"); ok && !slices.Contains(chartNames, r) && (kind != "pod" || name != "POD") {
			return fmt.Errorf("the chart has no %s", r)
		}
	}
	return nil
}

// checkHelm holds a command to the verbs that the pages use, the chart's folder and the
// names of its values.
func checkHelm(words []string) error {
	if len(words) < 3 || words[0] != "-n" || words[1] != "pact" {
		return errors.New("helm is for namespace pact")
	}
	words = words[2:]
	if !slices.Contains([]string{"history", "rollback", "upgrade", "get"}, words[0]) {
		return fmt.Errorf("helm %s is not on the list", words[0])
	}
	for i, w := range words {
		if strings.HasPrefix(w, "deploy/") {
			if _, err := os.Stat(filepath.Join("../..", w)); err != nil {
				return err
			}
		}
		if w == "--set" {
			key, _, _ := strings.Cut(words[i+1], "=")
			data, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
			if err != nil {
				return err
			}
			var values any
			if err := yaml.Unmarshal(data, &values); err != nil {
				return err
			}
			for part := range strings.SplitSeq(key, ".") {
				in, _ := values.(map[string]any)
				if values, _ = in[part]; values == nil {
					return fmt.Errorf("the chart has no value %s", key)
				}
			}
		}
	}
	return nil
}

// served are the metrics of a signer and a probe of it, as they are scraped.
func served(t *testing.T) map[string]metric {
	t.Helper()
	p := build(t)
	signer := p.command("signer", "serve", "--data", "data", "--public", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
		"--admin", "127.0.0.1:0", "--ops", "127.0.0.1:0", "-o", "json")
	out, err := signer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, signer)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the signer is not ready: %v", err)
	}
	var info struct {
		Public, Admin, Ops, AdminTokenFile string
		Issuers                            []string
	}
	if err := json.Unmarshal(line, &info); err != nil {
		t.Fatal(err)
	}
	operator := []string{"--server", info.Admin, "--token-file", info.AdminTokenFile}
	if out, err := p.command("pactctl", append(operator, "probe", "setup", "--issuer", info.Issuers[0], "--yes")...).CombinedOutput(); err != nil {
		t.Fatalf("probe setup: %v\n%s", err, out)
	}
	address := fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t, 0))
	start(t, p.command("pactctl", "probe", "--issuer", info.Issuers[0], "--state", "probe", "--interval", "1s", "--metrics", address))

	all := map[string]metric{}
	kind := regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	series := regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}`)
	for url, has := range map[string]string{info.Ops + "/metrics": "pact_signer_ready", "http://" + address + "/metrics": "pact_probe_last_success_timestamp_seconds{"} {
		text := scrape(t, url, has)
		for _, m := range kind.FindAllStringSubmatch(text, -1) {
			all[m[1]] = metric{m[2], map[string][]string{}}
		}
		for _, m := range series.FindAllStringSubmatch(text, -1) {
			if f, ok := all[m[1]]; ok {
				for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
					f.labels[l[1]] = nil
				}
			}
		}
	}
	return all
}

// start runs a program until the test ends.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
}

// scrape reads metrics as soon as they hold something.
func scrape(t *testing.T, url, has string) string {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 1200 {
		if resp, err := http.Get(url); err == nil {
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err == nil && strings.Contains(string(body), has) {
				return string(body)
			}
		}
		<-tick.C
	}
	t.Fatalf("%s never had %s", url, has)
	return ""
}
