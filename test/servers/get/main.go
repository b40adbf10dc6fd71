// Command get obtains what the tests run and run against: it builds servers.Programs
// from their Go modules into the user's cache, and installs Redis, Chromium and buildah from the system's
// packages if they are not there, which needs root. What is there it leaves alone.
//
//	go run ./test/servers/get
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/pactsigner/pactsigner/test/servers"
)

func main() {
	if err := errors.Join(programs(), definitions(), redis(), chromium(), buildah()); err != nil {
		fmt.Fprintf(os.Stderr, "get: %v\n", err)
		os.Exit(1)
	}
}

// programs builds what was not built before.
func programs() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	for _, p := range servers.Programs {
		if err := build(p, root); err != nil {
			return fmt.Errorf("build %s: %w", p.Name, err)
		}
	}
	return nil
}

func build(p servers.Program, root string) error {
	binary, err := p.Binary()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(binary), 0o700); err != nil {
		return err
	}
	lock := flock.New(binary + ".lock")
	if err := lock.Lock(); err != nil {
		return err
	}
	defer lock.Unlock()
	if _, err := os.Stat(binary); err == nil {
		return nil
	}
	fmt.Printf("building %s %s, once; it takes a few minutes\n", p.Name, p.Version)
	made := binary + ".new"
	cmd := exec.Command("go", "build", "-tags", p.Tags, "-trimpath", "-ldflags", "-s -w", "-o", made, p.Package)
	cmd.Dir = filepath.Join(root, filepath.FromSlash(p.Folder))
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(made, binary)
}

// definitions fetches what charts are checked against besides Kubernetes' own types.
func definitions() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "mod", "download", "sigs.k8s.io/gateway-api")
	cmd.Dir = filepath.Join(root, "tools", "crds")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch the Gateway API: %w", err)
	}
	return nil
}

func moduleRoot() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("where is the module: %w", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// redis installs what is missing of Redis.
func redis() error {
	var missing []string
	for program, pkg := range map[string]string{"redis-server": "redis-server", "redis-sentinel": "redis-sentinel", "redis-cli": "redis-tools"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	return install("Redis", "redis-server, redis-sentinel and redis-cli, 6.2 or later", missing...)
}

// chromium installs Chromium, with a font that its pages can be looked at in.
func chromium() error {
	if _, err := servers.Chromium(); err == nil {
		return nil
	}
	return install("Chromium", "Chromium or Google Chrome", "chromium", "fonts-liberation")
}

// buildah installs buildah, which builds the image without a daemon.
func buildah() error {
	if _, err := exec.LookPath("buildah"); err == nil {
		return nil
	}
	return install("buildah", "buildah", "buildah")
}

// install installs packages of the system. Who cannot is told what is needed.
func install(name, needed string, packages ...string) error {
	if len(packages) == 0 {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("no %s, and only root on a system with apt-get can install it here: install %s (packages %s)", name, needed, strings.Join(packages, ", "))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	lock := flock.New(filepath.Join(cache, "pactsigner", "packages.lock")) // programs made the folder
	if err := lock.Lock(); err != nil {
		return err
	}
	defer lock.Unlock()
	run := func(args ...string) error {
		cmd := exec.Command(apt, args...)
		// The tests start their own: the system's need not run.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("install %s: apt-get %s: %w", name, strings.Join(args, " "), err)
		}
		return nil
	}
	// The system may be at its packages by itself, as after it has started. An
	// installation waits for that when told to, an update of the lists does not.
	err = run("update", "-q")
	for tries := 1; err != nil && tries < updateTries; tries++ {
		time.Sleep(updatePause)
		err = run("update", "-q")
	}
	if err != nil {
		return err
	}
	return run(append([]string{"install", "-qy", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3"}, packages...)...)
}

// How often the lists of packages are asked for until they come, and how far apart.
const (
	updateTries = 12
	updatePause = 10 * time.Second
)
