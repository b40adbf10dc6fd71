package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// maxPolicyFile is the most that a policy file may have, in bytes.
const maxPolicyFile = 64 << 10

// PolicyFiles is a source of policies for Config.Policy: JSON files, read anew at
// every call. A file that does not exist narrows nothing; what exists must be
// good, else the error names file and member, and PACT is off. Several combine,
// and each can only narrow (PO-6).
//
// A file has its policy under "pact", or in members such as "pact.enabled":
//
//	{"pact": {"enabled": true, "autoRoute": false, "blockedProviders": ["*.example.net"]}}
//
// What is not said is not narrowed. Other members at the top are other programs'.
func PolicyFiles(paths ...string) func() (Policy, error) {
	return func() (Policy, error) {
		all := DefaultPolicy()
		var errs []error
		for _, path := range paths {
			source := PolicySource{Path: path}
			p, err := readPolicyFile(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				err = fmt.Errorf("policy file %s: %w", path, err)
				source.Problem = err.Error()
				errs = append(errs, err)
			default:
				source.Read = true
				all = all.narrow(p)
			}
			all.Sources = append(all.Sources, source)
		}
		return all, errors.Join(errs...)
	}
}

func (o object) names() []string {
	out := make([]string, len(o))
	for i, m := range o {
		out[i] = m.name
	}
	return out
}

func readPolicyFile(path string) (Policy, error) {
	// Looked at first: to open a pipe waits for its writer.
	if info, err := os.Stat(path); err != nil {
		if _, linked := os.Lstat(path); linked == nil && errors.Is(err, fs.ErrNotExist) {
			return Policy{}, errors.New("it is a link to nothing")
		}
		return Policy{}, unreadable(err)
	} else if !info.Mode().IsRegular() {
		return Policy{}, errors.New("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return Policy{}, unreadable(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPolicyFile+1))
	if err != nil {
		return Policy{}, unreadable(err)
	}
	if len(data) > maxPolicyFile {
		return Policy{}, fmt.Errorf("it is longer than %d bytes", maxPolicyFile)
	}
	return ParsePolicy(data)
}

// unreadable is an error of the file system without the path, which the caller
// names.
func unreadable(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("it cannot be read: %w", err)
}

// ParsePolicy reads the document of a policy file (PO-6). The error names the
// member.
func ParsePolicy(data []byte) (Policy, error) {
	top, err := parseObject(data)
	if err != nil {
		return Policy{}, fmt.Errorf("it is %w", err)
	}
	r := &reader{reason: ReasonDisabledByAdmin}
	var pact object
	add := func(m member) {
		switch {
		case !slices.Contains([]string{"enabled", "autoRoute", "blockedProviders"}, m.name):
			r.add(r.reason, "pact."+m.name, "is no member of the policy")
		case slices.Contains(pact.names(), m.name):
			r.add(r.reason, "pact."+m.name, "is given twice")
		case m.value.Kind() == 'n':
			r.add(r.reason, "pact."+m.name, "must not be null")
		default:
			pact = append(pact, m)
		}
	}
	for _, m := range top {
		flat, isFlat := strings.CutPrefix(m.name, "pact.")
		switch lower := strings.ToLower(m.name); {
		case isFlat:
			add(member{flat, m.value})
		case m.name == "pact":
			if m.value.Kind() != '{' {
				r.add(r.reason, "pact", "must be an object")
				continue
			}
			sub, err := parseObject(m.value)
			if err != nil {
				return Policy{}, fmt.Errorf("pact: it is %w", err)
			}
			for _, s := range sub {
				add(s)
			}
		case lower == "pact" || strings.HasPrefix(lower, "pact."): // meant for us, and not heard
			r.add(r.reason, m.name, "must be written in lower case: pact")
		}
	}
	p := DefaultPolicy()
	if slices.Contains(pact.names(), "enabled") {
		p.Enabled = r.flag(pact, "pact.", "enabled")
	}
	if slices.Contains(pact.names(), "autoRoute") {
		p.AutoRoute = r.flag(pact, "pact.", "autoRoute")
	}
	p.BlockedProviders = r.texts(pact, "pact.", "blockedProviders", false)
	for i, entry := range p.BlockedProviders {
		if kind, _ := blockEntry(entry); kind == "" {
			r.add(r.reason, fmt.Sprintf("pact.blockedProviders[%d]", i), "%q is no origin, host or *.host", truncate(entry, maxScopeID))
		}
	}
	if len(r.problems) > 0 {
		texts := make([]string, len(r.problems))
		for i, p := range r.problems {
			texts[i] = p.Field + ": " + p.Detail
		}
		return Policy{}, errors.New(strings.Join(texts, "; "))
	}
	return p, nil
}
