package control_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

const controlPage = "../../docs/control-plane.md"

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// route is a row of gateway.yaml.
type route struct{ verb, path string }

func routes(t *testing.T) map[string]route {
	t.Helper()
	all := map[string]route{}
	for _, m := range regexp.MustCompile(`AgentService\.(\w+)\n\s+(get|post|put|patch|delete): (\S+)`).FindAllStringSubmatch(readFile(t, "../../proto/pact/agent/v1/gateway.yaml"), -1) {
		all[m[1]] = route{strings.ToUpper(m[2]), m[3]}
	}
	return all
}

func service() protoreflect.ServiceDescriptor {
	return agentv1.File_pact_agent_v1_agent_proto.Services().ByName("AgentService")
}

// The page's table has each method as it is served, and the routes are the contract's.
func TestDocsMethods(t *testing.T) {
	page, all := readFile(t, controlPage), routes(t)
	served := map[string]bool{}
	for _, m := range control.Methods() {
		served[m.Name] = true
		if r := all[m.Name]; m.REST != r.verb+" "+r.path {
			t.Errorf("%s is served as %s, and its route is %s %s", m.Name, m.REST, r.verb, r.path)
		}
		task := ""
		if m.Task {
			task = "yes "
		}
		row := fmt.Sprintf("\n| `%s` | `%s` | `%s` | %s|\n", m.Name, m.REST, m.Scope, task)
		if !strings.Contains(page, row) {
			t.Errorf("the page does not have the row%s", row)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `[A-Z]\\w+` \\| `(GET|POST) ").FindAllString(page, -1)
	if methods := service().Methods(); len(served) != methods.Len() || len(rows) != methods.Len() {
		t.Errorf("%d methods are served and %d told, of %d", len(served), len(rows), methods.Len())
	}
	for _, s := range control.Scopes() {
		if strings.Count(page, fmt.Sprintf("\n| `%s` | ", s)) != 1 {
			t.Errorf("scope %s is not told", s)
		}
	}
}

// Each example of the page is a route, with members that its request has.
func TestDocsExamples(t *testing.T) {
	page := strings.ReplaceAll(readFile(t, controlPage), "\\\n", " ")
	all, found := routes(t), 0
	for _, m := range regexp.MustCompile(`(?m)^agent "?(/v1/[^\s"?]*)(?:\?([^\s"]*))?"?(?: -d '([^']*)')?$`).FindAllStringSubmatch(page, -1) {
		found++
		path, query, body := m[1], m[2], m[3]
		verb := "GET"
		if body != "" {
			verb = "POST"
		}
		method := ""
		for name, r := range all {
			pattern := regexp.MustCompile(`\\\{[^}]*\\\}`).ReplaceAllString(regexp.QuoteMeta(r.path), `[^/:]+`)
			if r.verb == verb && regexp.MustCompile("^"+pattern+"$").MatchString(path) {
				method = name
			}
		}
		if method == "" {
			t.Errorf("%s %s is no route", verb, path)
			continue
		}
		in := service().Methods().ByName(protoreflect.Name(method)).Input()
		for pair := range strings.SplitSeq(query, "&") {
			if name, _, _ := strings.Cut(pair, "="); name != "" && in.Fields().ByJSONName(name) == nil {
				t.Errorf("%s has no parameter %s", method, name)
			}
		}
		if body != "" {
			req := dynamicpb.NewMessage(in)
			if err := protojson.Unmarshal([]byte(body), req); err != nil {
				t.Errorf("%s: %v", method, err)
			}
		}
	}
	if found < 6 {
		t.Errorf("only %d examples were found", found)
	}
}

// The reasons of refusals, the updates of an operation and the states of an approval are
// those of the contract.
func TestDocsWords(t *testing.T) {
	page, proto := readFile(t, controlPage), readFile(t, "../../proto/pact/agent/v1/agent.proto")
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//   ([A-Z_]+)  +(\w+) +(\d+(?:, \d+)*)`).FindAllStringSubmatch(proto, -1) {
		want["| `"+m[1]+"` | `"+m[2]+"` | "+m[3]+" |"] = true
	}
	updates := agentv1.File_pact_agent_v1_agent_proto.Messages().ByName("OperationUpdate").Fields()
	for i := range updates.Len() {
		want["| `"+updates.Get(i).JSONName()+"` | "] = true
	}
	for _, state := range []string{
		agent.ApprovalPending, agent.ApprovalApproved, agent.ApprovalDenied, agent.ApprovalExpired,
		agent.ApprovalWithdrawn, agent.ApprovalSent, agent.ApprovalFailed,
	} {
		want["| `"+state+"` | "] = true
	}
	if len(want) < 18 {
		t.Errorf("only %d are expected: %v", len(want), slices.Sorted(maps.Keys(want)))
	}
	for row := range want {
		if n := strings.Count(page, "\n"+row); n != 1 {
			t.Errorf("%d rows begin with %s", n, row)
		}
	}
}
