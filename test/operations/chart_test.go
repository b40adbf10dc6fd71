package operations

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/test/servers"
)

// What the page tells to type on Kubernetes fits the chart: every release that it
// installs or upgrades renders, and what it asks kubectl for is in it.
func TestChart(t *testing.T) {
	commands := shown(t)
	rendered, made := "", []string{}
	for _, c := range commands {
		if c[0] != "helm" || !slices.Contains([]string{"install", "upgrade", "template"}, c[1]) {
			continue
		}
		out := render(t, c[2:])
		rendered += out
		made = append(made, resources(t, out)...)
	}
	if len(made) < 20 {
		t.Fatalf("only %d resources were found", len(made))
	}
	asked := 0
	for _, c := range commands {
		if c[0] != "kubectl" {
			continue
		}
		if c[1] != "create" && (c[1] != "-n" || c[2] != "pact") {
			t.Errorf("%s: is not for the namespace pact", strings.Join(c, " "))
		}
		for i, word := range c {
			switch kind, _, ok := strings.Cut(word, "/"); {
			case word == "--": // what follows is a program's in the pod
			case ok && slices.Contains([]string{"deployment", "statefulset", "service"}, kind):
				asked++
				if !slices.Contains(made, word) {
					t.Errorf("%s: the chart makes no %s", strings.Join(c, " "), word)
				}
			case ok && kind == "app.kubernetes.io":
				asked++
				if label, value, _ := strings.Cut(word, "="); !strings.Contains(rendered, label+": "+value+"\n") {
					t.Errorf("%s: nothing is labelled %s", strings.Join(c, " "), word)
				}
			case word == "generic" || word == "tls" || word == "configmap" && c[i-1] == "create":
				asked++
				name := c[i+1]
				if !regexp.MustCompile(`(?m)(secretName|name): ` + regexp.QuoteMeta(name) + `$`).MatchString(rendered) {
					t.Errorf("%s: nothing uses it", strings.Join(c, " "))
				}
			}
		}
	}
	if asked < 8 {
		t.Errorf("kubectl is asked for %d things only", asked)
	}
}

// shown are the commands of the page's blocks, in words.
func shown(t *testing.T) (commands [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.SplitSeq(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			for command := range strings.SplitSeq(line, " && ") {
				if words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(command), "&")); len(words) > 2 {
					commands = append(commands, words)
				}
			}
		}
	}
	return commands
}

// render renders what a command would install. values.yaml is what the page tells to
// copy.
func render(t *testing.T, args []string) string {
	t.Helper()
	helm, err := servers.Find("helm")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "deploy"), filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	values, err := os.ReadFile("../../deploy/helm/pact-signer/values-production.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "values.yaml"), values, 0o600); err != nil {
		t.Fatal(err)
	}
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--create-namespace" })
	var out, stderr bytes.Buffer
	cmd := exec.Command(helm, append([]string{"template", "--kube-version", "1.30.0", "--api-versions", "monitoring.coreos.com/v1"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, []string{"HOME=" + dir}, &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("helm template %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out.String()
}

// resources are what is made, as kubectl is asked for it.
func resources(t *testing.T, manifests string) (names []string) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var r struct {
			Kind     string
			Metadata struct{ Name string }
		}
		err := d.Decode(&r)
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.ToLower(r.Kind)+"/"+r.Metadata.Name)
	}
}
