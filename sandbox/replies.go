package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// fileReply is one scripted reply of a configuration file.
type fileReply struct {
	At      place
	Match   filePattern  `yaml:"match"`
	Needs   []string     `yaml:"needs"`
	Text    string       `yaml:"text"`
	Actions []fileAction `yaml:"actions"`
	Close   bool         `yaml:"close"`
}

// filePattern is a regular expression; without one, everything fits.
type filePattern struct{ *regexp.Regexp }

func (f *filePattern) readFrom(p place) {
	text, ok := p.text()
	if !ok {
		return
	}
	var err error
	if f.Regexp, err = regexp.Compile(text); err != nil {
		p.fail("%v: mend it (https://golang.org/s/re2syntax: there is no lookahead and no backreference), and quote it with '…' in YAML", err)
	}
}

type fileAction struct {
	At   place
	Tool string   `yaml:"tool"`
	Args fileJSON `yaml:"args"`
}

// fileJSON is any value that JSON can say.
type fileJSON struct{ raw jsontext.Value }

func (f *fileJSON) readFrom(p place) {
	var v any
	err := p.node.Decode(&v)
	if err == nil {
		f.raw, err = json.Marshal(v)
	}
	if err != nil {
		p.fail("it cannot be said in JSON, which has text for keys, and neither .nan nor .inf: write text in quotes (%v)", err)
	}
}

// script is a brand that answers with the first reply that fits.
type script struct {
	replies   []scripted
	otherwise string
}

type scripted struct {
	match *regexp.Regexp // nil: everything
	reply Reply          // Used are the scopes that it needs
}

func (f *fileBrand) script() script {
	s := script{otherwise: "This is " + f.Name + ". There is no answer to that here."}
	last := len(f.Replies) - 1
	for i, r := range f.Replies {
		if r.Match.Regexp == nil && r.At.key("match").node == r.At.node && i < last {
			r.At.fail("without match it fits everything, and replies[%d] is never reached: move it to the end, or give it a match", i+1)
		}
		if len(r.Actions) > 0 && len(f.Scopes.list) == 0 {
			r.At.key("actions").fail("the brand has no scopes, and so no receipts that list them: give it scopes, or leave this out")
		}
		reply := Reply{Text: r.Text, Used: r.Needs, Close: r.Close}
		r.At.required("text", r.Text)
		seen := map[string]bool{}
		for i, id := range r.Needs {
			at := r.At.key("needs").item(i)
			f.scope(at, id)
			if seen[id] {
				at.fail("%q is needed already: keep one", id)
			}
			seen[id] = true
		}
		for _, a := range r.Actions {
			a.At.required("tool", a.Tool)
			action, err := newAction(a.Tool, a.Args.raw)
			if err != nil {
				a.At.key("args").fail("%v", err)
			}
			reply.Actions = append(reply.Actions, action)
		}
		s.replies = append(s.replies, scripted{r.Match.Regexp, reply})
	}
	return s
}

func (s script) respond(_ context.Context, t Turn) (Reply, error) {
	for _, r := range s.replies {
		if r.match != nil && !r.match.MatchString(t.Text) {
			continue
		}
		var missing []string
		for _, id := range r.reply.Used {
			if !t.Allowed(id) {
				missing = append(missing, id)
			}
		}
		if len(missing) > 0 {
			return Reply{Missing: missing}, nil
		}
		return r.reply, nil
	}
	return Reply{Text: s.otherwise}, nil
}

// newAction names a tool that ran. The hash is "sha256:" and the hex of SHA-256 over
// the arguments as canonical JSON (RFC 8785); without arguments there is none.
func newAction(tool string, args jsontext.Value) (Action, error) {
	if args == nil {
		return Action{Tool: tool}, nil
	}
	canonical := args.Clone()
	if err := canonical.Canonicalize(); err != nil {
		return Action{}, fmt.Errorf("it has no canonical JSON: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return Action{Tool: tool, ArgsHash: "sha256:" + hex.EncodeToString(sum[:])}, nil
}

// commandTurn is what a command gets on stdin.
type commandTurn struct {
	Brand     string         `json:"brand"`
	Issuer    string         `json:"issuer"`
	Subject   string         `json:"subject"`
	ContextID string         `json:"contextId"`
	Text      string         `json:"text"`
	User      string         `json:"user,omitempty"`
	Scopes    []string       `json:"scopes"`
	At        string         `json:"at"` // RFC 3339
	Memory    jsontext.Value `json:"memory,omitempty"`
}

// commandReply is what a command answers on stdout.
type commandReply struct {
	Text    string          `json:"text"`
	Missing []string        `json:"missingScopes"`
	Used    []string        `json:"scopesUsed"`
	Actions []commandAction `json:"actions"`
	Close   bool            `json:"close"`
	Memory  jsontext.Value  `json:"memory"`
}

type commandAction struct {
	Tool string         `json:"tool"`
	Args jsontext.Value `json:"args"`
}

// maxActions bounds the actions of one reply.
const maxActions = 64

// parseCommandReply reads a command's answer: one JSON object, no member unknown or
// twice.
func parseCommandReply(answer []byte) (Reply, error) {
	var in commandReply
	if jsontext.Value(answer).Kind() != '{' {
		return Reply{}, errors.New("the answer is not a JSON object")
	}
	if err := json.Unmarshal(answer, &in, json.RejectUnknownMembers(true)); err != nil {
		return Reply{}, fmt.Errorf("the answer: %w", err)
	}
	if len(in.Actions) > maxActions {
		return Reply{}, fmt.Errorf("the answer has %d actions: at most %d go into a receipt", len(in.Actions), maxActions)
	}
	r := Reply{Text: in.Text, Missing: in.Missing, Used: in.Used, Close: in.Close, Memory: in.Memory}
	for i, a := range in.Actions {
		if a.Tool == "" {
			return Reply{}, fmt.Errorf("actions[%d].tool is missing", i)
		}
		action, err := newAction(a.Tool, a.Args)
		if err != nil {
			return Reply{}, fmt.Errorf("actions[%d].args: %w", i, err)
		}
		r.Actions = append(r.Actions, action)
	}
	return r, nil
}

// fileCommand is a program that answers a brand's turns.
type fileCommand struct {
	At      place
	Argv    arguments     `yaml:"argv"`
	Timeout time.Duration `yaml:"timeout"`
	Dir     string        `yaml:"dir"`
}
