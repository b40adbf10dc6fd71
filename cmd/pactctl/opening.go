package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/adrg/xdg"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
	"github.com/pactsigner/pactsigner/agent/sqlite"
)

// opened is the agent that a command works with, until it is closed: one in this
// process, or the running one.
type opened struct {
	agent  personal
	caller agent.Caller // the owner on this command line
	local  *agent.Agent // the agent itself, if it is in this process
	target string       // else where the running one is
	owner  bool         // what is called has the owner's whole authority, not a token's
	close  func() error
}

// open opens the agent that flags, environment and contexts name. The caller closes
// it. Errors of opening a profile are *openError, if a check of doctor tells them.
func (p *profile) open(ctx context.Context) (*opened, error) {
	at, err := p.place()
	if err != nil {
		return nil, err
	}
	off := disables(os.Getenv("PACT_DISABLED")) // of which a running agent does not know
	switch {
	case at.target == "":
	case p.here:
		return nil, onlyHere(at.by)
	case off:
		return nil, fmt.Errorf("PACT_DISABLED is set, so PACT is off here; the agent that %s names does not know of it: unset it to use that", at.by)
	default:
		return p.openThere(ctx, at)
	}
	if !p.here && !off {
		if o, err := p.openRunning(ctx, at.dir); o != nil || err != nil {
			return o, err
		}
	}
	key, err := keySource()
	if err != nil {
		return nil, err
	}
	h, err := p.openHere(at.dir, key, 1)
	if err != nil {
		return nil, err
	}
	return &opened{agent: h.agent, caller: p.caller(), local: h.agent, owner: true, close: h.close}, nil
}

// openThere opens a running agent.
func (p *profile) openThere(ctx context.Context, at place) (*opened, error) {
	if p.development {
		return nil, usagef("--development is of the process that the agent is in, and that runs at %s already: start it so, pactctl agent serve --development", at.target)
	}
	c, err := dial(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := countsPolicies(ctx, c, p.caller()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	p.limit = c
	return &opened{agent: c, caller: p.caller(), target: at.target, owner: at.owner(), close: c.Close}, nil
}

// openRunning opens the agent that runs for a profile; nil if none does.
func (p *profile) openRunning(ctx context.Context, dir string) (*opened, error) {
	target, err := runningAt(dir)
	if err != nil || target == "" {
		return nil, err
	}
	if err := p.keepPrivate(dir, false); err != nil {
		return nil, err
	}
	o, err := p.openThere(ctx, place{target: target})
	if err != nil {
		if target, again := runningAt(dir); again == nil && target == "" { // it has just ended
			return nil, nil
		}
	}
	return o, err
}

// with opens the agent for one piece of work. What that is refused for is the
// command's JSON result.
func (p *profile) with(ctx context.Context, work func(context.Context, personal, agent.Caller) error) (err error) {
	o, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	p.waiting = newWaiting(p.app)
	defer p.waiting.close()
	ag := o.agent
	if o.local != nil {
		ag = control.Checked{Agent: o.local}
	}
	err = refused(work(ctx, ag, o.caller))
	if id := or(p.signIn, p.waitFor); err != nil && ctx.Err() != nil && id != "" { // the text stays, the kind "interrupted" would hide it
		return fmt.Errorf("%s: %s", or(p.stopped, "stopped waiting; go on with"), or(p.goOn, "pactctl authorization wait "+id))
	}
	return err
}

// openError is why a profile cannot be opened, and which check of doctor tells that.
type openError struct {
	check string
	err   error
}

func (e *openError) Error() string { return e.err.Error() }
func (e *openError) Unwrap() error { return e.err }

// folder is the profile's, that flags and environment name.
func (p *profile) folder() (string, error) {
	dir := or(p.dir, os.Getenv("PACT_PROFILE"))
	if dir == "" {
		if err := hasDataHome(); err != nil {
			return "", err
		}
		dir = filepath.Join(xdg.DataHome, "pactctl", "agent")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--profile: %w", err)
	}
	return dir, nil
}

// hasDataHome refuses an environment that does not say where profiles are: programs
// start others with a bare one, and a new, empty profile would then be somewhere else.
func hasDataHome() error {
	const fix = "say --profile DIR, or set PACT_PROFILE"
	data := os.Getenv("XDG_DATA_HOME")
	switch {
	case runtime.GOOS == "windows":
		return nil
	case data != "" && !filepath.IsAbs(data):
		return usagef("XDG_DATA_HOME is %q, which is no absolute path, so there is no place for the profile: %s", data, fix)
	case data == "" && os.Getenv("HOME") == "":
		return usagef("neither HOME nor XDG_DATA_HOME is set, so there is no place for the profile: %s", fix)
	}
	return nil
}

// here is a profile that is open in this process.
type here struct {
	agent *agent.Agent
	store *sqlite.Store
}

func (h *here) close() error {
	h.agent.Close()
	return h.store.Close()
}

// openHere opens a profile in this process, and makes it if there is none. Durations
// are divided by scale.
func (p *profile) openHere(dir string, key agent.KeySource, scale int) (*here, error) {
	policy, err := policyFiles(dir)
	if err != nil {
		return nil, err
	}
	store, made, err := p.openStore(dir)
	if err != nil {
		return nil, err
	}
	a, err := agent.Open(agent.Config{
		Dir: dir, Store: store, Key: key, Now: p.app.now, Scale: scale,
		Development:   p.development || os.Getenv("PACT_DEVELOPMENT") == "1",
		DisabledByEnv: disables(os.Getenv("PACT_DISABLED")),
		Policy:        policy,
	})
	if err != nil {
		check := "store"
		if errors.Is(err, agent.ErrProfileKey) {
			check = "profile key"
		}
		return nil, errors.Join(&openError{check, err}, store.Close())
	}
	if made && !p.makes {
		p.app.note("There was no profile: a new one is in %s.", dir)
	}
	for _, notice := range a.Notices() {
		p.app.note("%s", notice)
	}
	return &here{a, store}, nil
}

// openStore opens the journal of a profile, whose folder it makes if there is none,
// and tells whether the profile is a new one.
func (p *profile) openStore(dir string) (store *sqlite.Store, made bool, err error) {
	if made, err = p.makeFolder(dir); err != nil {
		return nil, made, err
	}
	if store, err = sqlite.Open(filepath.Join(dir, storeFile)); err != nil {
		return nil, made, &openError{"store", err}
	}
	return store, made, nil
}

// storeFile is the journal's, in the profile's folder.
const storeFile = "agent.db"

// makeFolder makes the folder of a profile, if there is none, and tells whether no
// profile is in it yet.
func (p *profile) makeFolder(dir string) (made bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("--profile: %w", err)
	}
	_, err = os.Stat(filepath.Join(dir, storeFile))
	made = errors.Is(err, fs.ErrNotExist)
	return made, p.keepPrivate(dir, made)
}

// keepPrivate holds a profile's folder to mode 0700. One of somebody else's, or one
// that was made for something else, is not changed.
func (p *profile) keepPrivate(dir string, made bool) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	mode := info.Mode().Perm()
	if mode&0o077 == 0 || runtime.GOOS == "windows" {
		return nil
	}
	refusal := fmt.Errorf("--profile: %s has mode %04o, so others than you can use what is in it: chmod 700 %[1]s, or name another folder", dir, mode)
	if made {
		if inside, err := os.ReadDir(dir); err != nil || len(inside) > 0 {
			return refusal
		}
	}
	if !control.OwnFile(info) || info.Mode()&fs.ModeSticky != 0 || os.Chmod(dir, 0o700) != nil {
		return refusal
	}
	p.app.note("The profile's folder %s had mode %04o, by which others could use it: it is 0700 now.", dir, mode)
	return nil
}

// disables reads PACT_DISABLED: what is not plainly no switches PACT off.
func disables(value string) bool {
	return value != "" && value != "0" && !strings.EqualFold(value, "false")
}

// keySource reads PACT_KEYRING: where a new profile's key goes, and whether the
// keyring may be asked.
func keySource() (agent.KeySource, error) {
	switch v := os.Getenv("PACT_KEYRING"); v {
	case "":
		return agent.KeyAuto, nil
	case "on":
		return agent.KeyKeyring, nil
	case "off":
		return agent.KeyFile, nil
	default:
		return "", usagef("PACT_KEYRING: %q is unknown: say on or off", v)
	}
}
