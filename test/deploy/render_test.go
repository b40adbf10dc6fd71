package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/test/servers"
)

// kubeVersion is the oldest Kubernetes that the chart is for, and the newest whose
// schemas kubectl-validate brings.
const kubeVersion = "1.30.0"

// object is a Kubernetes object as it was rendered.
type object map[string]any

// kindName is how a person names it.
func (o object) kindName() string { return fmt.Sprintf("%v/%v", o["kind"], at(o, "metadata", "name")) }

// at follows a path of keys, and of numbers in lists; nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch in := v.(type) {
		case object:
			v = in[p.(string)]
		case map[string]any:
			v = in[p.(string)]
		case []any:
			i := p.(int)
			if i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// list is at for a list.
func list(v any, path ...any) []any {
	l, _ := at(v, path...).([]any)
	return l
}

// program is where a program is; the test fails where it is not.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := servers.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// helm runs helm, and returns what it wrote and its complaint.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program(t, "helm"), args...)
	// Neither the user's repositories and plugins nor a cluster.
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		var ended *exec.ExitError
		if !errors.As(err, &ended) {
			t.Fatal(err)
		}
		return out.String(), errors.New(complaint.String())
	}
	return out.String(), nil
}

// template renders the chart as `helm install pact-signer -n pact` would.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	key := strings.Join(args, " ")
	if out, there := rendered.Load(key); there {
		return out.(string), nil
	}
	out, err := helm(t, append([]string{"template", "pact-signer", chart, "--namespace", "pact", "--kube-version", kubeVersion}, args...)...)
	if err == nil {
		rendered.Store(key, out)
	}
	return out, err
}

// rendered is what template has rendered before, by its arguments.
var rendered sync.Map

// render renders it to objects.
func render(t *testing.T, v variant) objects {
	t.Helper()
	out, err := template(t, v.args()...)
	if err != nil {
		t.Fatalf("helm template: %v", err)
	}
	return parse(t, out)
}

// objects are all that one rendering made.
type objects []object

func parse(t *testing.T, manifests string) objects {
	t.Helper()
	var all objects
	for dec := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var o map[string]any
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("rendered YAML: %v", err)
		}
		if o != nil {
			all = append(all, object(o))
		}
	}
}

// of are those of a kind.
func (all objects) of(kind string) objects {
	return slices.DeleteFunc(slices.Clone(all), func(o object) bool { return o["kind"] != kind })
}

// get is the one of that kind and name; nil if there is none.
func (all objects) get(kind, name string) object {
	for _, o := range all.of(kind) {
		if at(o, "metadata", "name") == name {
			return o
		}
	}
	return nil
}

// pod is a pod, or the template of some.
type pod struct {
	of     object
	labels map[string]any
	spec   map[string]any
}

// pods are those that all objects make.
func (all objects) pods() []pod {
	var found []pod
	for _, o := range all {
		from := any(o)
		switch o["kind"] {
		case "Deployment", "StatefulSet", "Job":
			from = at(o, "spec", "template")
		case "Pod":
		default:
			continue
		}
		labels, _ := at(from, "metadata", "labels").(map[string]any)
		spec, _ := at(from, "spec").(map[string]any)
		found = append(found, pod{o, labels, spec})
	}
	return found
}

// ports are a pod's, by name.
func (p pod) ports() map[any]any {
	ports := map[any]any{}
	for _, c := range list(p.spec, "containers") {
		for _, port := range list(c, "ports") {
			ports[at(port, "name")] = at(port, "containerPort")
		}
	}
	return ports
}

// selects says whether a label selector takes these labels.
func selects(selector any, labels map[string]any) bool {
	match, _ := at(selector, "matchLabels").(map[string]any)
	for k, v := range match {
		if labels[k] != v {
			return false
		}
	}
	for _, e := range list(selector, "matchExpressions") {
		if at(e, "operator") != "In" || !slices.Contains(list(e, "values"), labels[at(e, "key").(string)]) {
			return false
		}
	}
	return true
}

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if got != string(want) {
		t.Errorf("%s is not what is rendered; see the difference with -update and git diff:\n%s", path, firstDifference(string(want), got))
	}
}

// firstDifference shows the first lines that differ.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, strings.Join(w[min(i, len(w)):min(i+3, len(w))], "\n     "), strings.Join(g[min(i, len(g)):min(i+3, len(g))], "\n     "))
		}
	}
	return ""
}
