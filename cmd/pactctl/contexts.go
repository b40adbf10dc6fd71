package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/adrg/xdg"
	"go.yaml.in/yaml/v3"
)

// contexts is the file that remembers signers and running agents, as kubectl remembers
// clusters.
// It holds no secrets, only where the token files are.
type contexts struct {
	// Current is the name of the context that is used when nothing else is said.
	Current  string                   `yaml:"current,omitempty"`
	Contexts map[string]signerContext `yaml:"contexts"`

	path string
}

// signerContext says which signer to talk to, and as whom; or which running agent; or
// both.
type signerContext struct {
	Server    string `yaml:"server,omitempty"`    // URL of the admin listener; empty: the context names no signer
	TokenFile string `yaml:"tokenFile,omitempty"` // absolute path of a file with the admin token
	Issuer    string `yaml:"issuer,omitempty"`    // the issuer that commands are about, if the signer has several
	CAFile    string `yaml:"caFile,omitempty"`    // PEM certificates to trust instead of the system's
	Insecure  bool   `yaml:"insecure,omitempty"`  // allow plain http beyond loopback

	Agent          string `yaml:"agent,omitempty"`          // target of a running agent; empty: the context names none
	AgentTokenFile string `yaml:"agentTokenFile,omitempty"` // absolute path of a file with its token
}

// contextsPath is where the contexts file is.
func contextsPath() string {
	return filepath.Join(xdg.ConfigHome, "pactctl", "contexts.yaml")
}

// loadContexts reads the contexts file; a missing one is empty.
func loadContexts() (*contexts, error) {
	c := &contexts{path: contextsPath()}
	b, err := os.ReadFile(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read contexts: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("contexts file %s: %w", c.path, err)
	}
	if c.Contexts == nil {
		c.Contexts = map[string]signerContext{}
	}
	return c, nil
}

// save replaces the contexts file in one step.
func (c *contexts) save() error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	if err := replaceFile(c.path, b); err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// replaceFile writes a file of mode 0600, in one step in place of what was there.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".pactctl-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once renamed
	_, err = f.Write(content)
	if err2 := f.Sync(); err == nil {
		err = err2
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// get returns a context by name.
func (c *contexts) get(name string) (signerContext, error) {
	ctx, ok := c.Contexts[name]
	if !ok {
		return signerContext{}, fmt.Errorf("there is no context %q: see pactctl context list", name)
	}
	return ctx, nil
}

// names lists the contexts in order.
func (c *contexts) names() []string {
	return slices.Sorted(maps.Keys(c.Contexts))
}
