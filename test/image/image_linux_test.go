// Package image builds the Dockerfile, and runs what is in the image as a container
// runtime would: as the image's user, with no rights, in its root alone, which is
// read-only but for the two folders that are meant to be written to.
//
// The build is a real one, by buildah. Only the image that it starts from stands for
// Go's own, since the tests reach no registry of images: a shell, what the
// Dockerfile's commands call, and this machine's Go with its caches.
package image

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sys/unix"
)

const (
	user     = 65532 // the image's, and its group
	version  = "v0.0.1-test"
	revision = "8f7ca18aa0e3b4d7a0b7c5f1d2e3f4a5b6c7d8e9"

	// variables that make this program become a process of the image
	enterRoot = "PACT_TEST_IMAGE_ROOT"
	enterData = "PACT_TEST_IMAGE_DATA"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(enterRoot); root != "" {
		fmt.Fprintf(os.Stderr, "enter the image: %v\n", enter(root, os.Getenv(enterData), os.Args[1:]))
		os.Exit(125)
	}
	if os.Geteuid() != 0 {
		// What follows mounts and changes users: as root of a user namespace.
		if program, err := exec.LookPath("buildah"); err == nil {
			err = syscall.Exec(program, append([]string{program, "unshare"}, os.Args...), os.Environ())
			fmt.Fprintf(os.Stderr, "buildah unshare: %v\n", err)
			os.Exit(1)
		}
	}
	syscall.Umask(0o022) // what is copied into the image keeps its mode
	os.Exit(m.Run())
}

// enter makes this process one of the image, and returns only with an error. It is
// in a mount namespace of its own.
func enter(root, data string, argv []string) error {
	runtime.LockOSThread()
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		options              string
	}{
		{root, root, "", unix.MS_BIND, ""},
		{"tmpfs", filepath.Join(root, "tmp"), "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{data, filepath.Join(root, "data"), "", unix.MS_BIND, ""},
		{"", root, "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV, ""},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, enterRoot+"=") || strings.HasPrefix(v, enterData+"=")
	})
	for _, step := range []func() error{
		func() error { return unix.Chroot(root) },
		func() error { return unix.Chdir("/") },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(user) },
		func() error { return syscall.Setuid(user) },
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
		func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) },
		func() error { return unix.Exec(argv[0], argv, env) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// TestImage builds the image once, and looks at it and into it.
func TestImage(t *testing.T) {
	authority := newAuthority(t)
	image := build(t, authority.certificate)
	t.Run("config", image.testConfig)
	t.Run("files", func(t *testing.T) { image.testFiles(t, authority.certificate) })
	t.Run("programs", image.testPrograms)
	t.Run("serve", func(t *testing.T) { image.testServe(t, authority) })
}

// TestGoVersion holds the builder to the Go version that the module asks for.
func TestGoVersion(t *testing.T) {
	find := func(file, pattern string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		if found == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return found[1]
	}
	module, builder := find("go.mod", `(?m)^go (\d+\.\d+)`), find("Dockerfile", `(?m)^ARG GO_IMAGE=.*golang:(\S+)$`)
	if module != builder {
		t.Errorf("the Dockerfile builds with Go %s, go.mod says %s", builder, module)
	}
}

// image is the built image, unpacked.
type image struct {
	root   string
	config config
}

// config is the part of an OCI image's configuration that a runtime goes by.
type config struct {
	User         string
	ExposedPorts map[string]struct{}
	Env          []string
	Entrypoint   []string
	Cmd          []string
	Volumes      map[string]struct{}
	WorkingDir   string
	Labels       map[string]string
}

// build builds the Dockerfile with certificates as the builder's public authorities.
func build(t *testing.T, certificates []byte) image {
	t.Helper()
	var host struct{ GOROOT, GOMODCACHE, GOCACHE, GOPROXY string }
	out, err := exec.Command("go", "env", "-json", "GOROOT", "GOMODCACHE", "GOCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	if err := json.Unmarshal(out, &host); err != nil {
		t.Fatal(err)
	}
	b := newBuildah(t)
	b.run("build", "--isolation", "chroot", "-t", "localhost/pact-signer",
		"-v", host.GOROOT+":/usr/local/go:ro", "-v", host.GOMODCACHE+":/go/pkg/mod", "-v", host.GOCACHE+":/cache",
		"--build-arg", "GO_IMAGE="+b.base(certificates), "--build-arg", "GOPROXY="+host.GOPROXY,
		"--build-arg", "VERSION="+version, "--build-arg", "REVISION="+revision, filepath.Join("..", ".."))
	var described struct {
		OCIv1 struct {
			Config config `json:"config"`
		}
	}
	if err := json.Unmarshal([]byte(b.run("inspect", "--type", "image", "localhost/pact-signer")), &described); err != nil {
		t.Fatalf("buildah inspect: %v", err)
	}
	return image{b.run("mount", b.run("from", "localhost/pact-signer")), described.OCIv1.Config}
}

// buildah keeps its images in a folder of the test.
type buildah struct {
	t       *testing.T
	program string
	dir     string
}

func newBuildah(t *testing.T) buildah {
	t.Helper()
	program, err := exec.LookPath("buildah")
	if err != nil {
		t.Fatalf("buildah is not installed: run `go run ./test/servers/get` as root, or install the package buildah")
	}
	return buildah{t, program, t.TempDir()}
}

// run runs buildah, and returns what it says on standard output.
func (b buildah) run(args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), b.program, append([]string{
		// Copies rather than overlays: nothing stays mounted.
		"--storage-driver", "vfs", "--root", filepath.Join(b.dir, "root"), "--runroot", filepath.Join(b.dir, "run"),
	}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+b.dir)
	// Its mounts, of this machine's Go and caches, end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		b.t.Fatalf("buildah %s: %v\n%s%s", args[0], err, &stdout, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}

// base makes the image that stands for Go's, and returns its name.
func (b buildah) base(certificates []byte) string {
	b.t.Helper()
	root := b.t.TempDir()
	place := func(from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			b.t.Fatal(err)
		}
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "mkdir", "chmod"} {
		program, err := exec.LookPath(name)
		if err != nil {
			b.t.Fatal(err)
		}
		place(program, "/bin/"+name)
		libraries, err := exec.Command("ldd", program).Output()
		if err != nil {
			continue // it needs none
		}
		for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1) {
			place(library, library)
		}
	}
	bundle := filepath.Join(b.t.TempDir(), "bundle")
	if err := os.WriteFile(bundle, certificates, 0o644); err != nil {
		b.t.Fatal(err)
	}
	place(bundle, authorities)
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o777); err != nil {
		b.t.Fatal(err)
	}
	const name = "localhost/go"
	container := b.run("from", "scratch")
	b.run("copy", container, root, "/")
	b.run("config", "--env", "PATH=/usr/local/go/bin:/bin", "--env", "GOPATH=/go", "--env", "GOCACHE=/cache", container)
	b.run("commit", container, name)
	return name
}

// testConfig is about what a runtime is told.
func (i image) testConfig(t *testing.T) {
	c := i.config
	if want := fmt.Sprintf("%d:%[1]d", user); c.User != want {
		t.Errorf("user %q, want %q: Kubernetes' runAsNonRoot wants a number", c.User, want)
	}
	if got := slices.Concat(c.Entrypoint, c.Cmd); !slices.Equal(got, []string{"/signer", "serve"}) || len(c.Entrypoint) != 1 {
		t.Errorf("entrypoint %q, command %q", c.Entrypoint, c.Cmd)
	}
	if got := slices.Sorted(maps.Keys(c.ExposedPorts)); !slices.Equal(got, []string{"8787/tcp", "8788/tcp", "8789/tcp", "8790/tcp"}) {
		t.Errorf("ports %q", got)
	}
	if len(c.Volumes) > 0 {
		t.Errorf("volumes %v: keys in a volume without a name are lost unnoticed", c.Volumes)
	}
	for label, want := range map[string]string{"version": version, "revision": revision, "licenses": "Apache-2.0", "title": "pact-signer"} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q, want %q", label, got, want)
		}
	}
}

// authorities is where Go looks for the certificates of public authorities.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// testFiles is about every file in the image: the two programs, and nothing to run
// beside them.
func (i image) testFiles(t *testing.T, certificates []byte) {
	want := map[string]string{
		"/etc": "drwxr-xr-x 0", "/etc/ssl": "drwxr-xr-x 0", "/etc/ssl/certs": "drwxr-xr-x 0", authorities: "-rwxr-xr-x 0",
		"/signer": "-rwxr-xr-x 0", "/pactctl": "-rwxr-xr-x 0", "/LICENSE": "as in the working copy",
		"/data": "drwx------ 65532", "/tmp": "dtrwxrwxrwx 65532",
	}
	got := map[string]string{}
	err := filepath.WalkDir(i.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == i.root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		got[strings.TrimPrefix(path, i.root)] = fmt.Sprintf("%v %d", info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got["/LICENSE"]; ok {
		got["/LICENSE"] = want["/LICENSE"]
	}
	if !maps.Equal(got, want) {
		t.Errorf("in the image:\n%v\nwant:\n%v", got, want)
	}
	if bundle, err := os.ReadFile(filepath.Join(i.root, authorities)); err != nil || !bytes.Equal(bundle, certificates) {
		t.Errorf("the certificates of public authorities are not the builder's: %v", err)
	}
}

// testPrograms is about what the programs need: nothing.
func (i image) testPrograms(t *testing.T) {
	for _, name := range []string{"signer", "pactctl"} {
		program := filepath.Join(i.root, name)
		file, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s is not static: it has a %v", name, p.Type)
			}
		}
		built, err := exec.Command("go", "version", "-m", program).Output()
		if err != nil {
			t.Fatalf("go version -m: %v", err)
		}
		for _, want := range []string{"CGO_ENABLED=0", "-trimpath=true"} {
			if !strings.Contains(string(built), want) {
				t.Errorf("%s was built without %s", name, want)
			}
		}
		if out, err := i.command(t, t.TempDir(), "/"+name, "version").Output(); err != nil || strings.TrimSpace(string(out)) != version {
			t.Errorf("%s version: %q, %v", name, out, err)
		}
	}
}

// command is a process of the image, with a folder of this machine as its /data.
func (i image) command(t *testing.T, data string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(slices.Clone(i.config.Env), enterRoot+"="+i.root, enterData+"="+data)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

// testServe runs the signer and operates it, with pactctl of the same image: a token
// that it signs verifies, and after a restart its keys are the same.
func (i image) testServe(t *testing.T, authority authority) {
	data := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": authority.certificate, "tls.key": authority.key} {
		if err := os.WriteFile(filepath.Join(data, name), content, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(data, user, user); err != nil {
		t.Fatal(err)
	}
	signer := i.serve(t, data)
	pactctl := func(args ...string) []byte {
		t.Helper()
		// It knows the admin listener's certificate from the image's authorities alone.
		cmd := i.command(t, data, append([]string{"/pactctl", "--server", signer.Admin, "--token-file", "/data/pact-signer/admin-token"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("pactctl %q: %v\n%s", args, err, cmd.Stderr)
		}
		return out
	}
	const audience = "image-test"
	pactctl("audiences", "set", "http://127.0.0.1:9", audience)
	var made struct{ Credential string }
	if err := json.Unmarshal(pactctl("credentials", "create", "--name", "image", "-o", "json"), &made); err != nil {
		t.Fatal(err)
	}
	var signed struct{ Token string }
	call(t, signer.Public+"/pact/sign", made.Credential, `{"audience":"`+audience+`","nonce":"0011223344556677"}`, &signed)
	keys := signer.keys(t)
	token, err := jwt.ParseSigned(signed.Token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := token.Claims(keys, &claims); err != nil {
		t.Fatalf("the token does not verify against the key set: %v", err)
	}
	if err := claims.Validate(jwt.Expected{Issuer: signer.Issuers[0], AnyAudience: jwt.Audience{audience}, Time: time.Now()}); err != nil {
		t.Error(err)
	}
	signer.stop(t)

	again := i.serve(t, data)
	if got := again.keys(t); len(got.Keys) == 0 || got.Keys[0].KeyID != keys.Keys[0].KeyID {
		t.Errorf("after a restart the keys are %v, they were %v", got.Keys, keys.Keys)
	}
	again.stop(t)
}

// served is a running signer.
type served struct {
	cmd     *exec.Cmd
	Public  string   `json:"public"`
	Admin   string   `json:"admin"`
	Issuers []string `json:"issuers"`
}

// serve starts the image as its entrypoint and command say, on free ports.
func (i image) serve(t *testing.T, data string) *served {
	t.Helper()
	args := slices.Concat(i.config.Entrypoint, i.config.Cmd, []string{"-o", "json",
		"--public", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ops", "127.0.0.1:0",
		"--set", "listeners.admin.certFile=/data/tls.crt", "--set", "listeners.admin.keyFile=/data/tls.key"})
	s := &served{cmd: i.command(t, data, args...)}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		s.cmd.Wait()
		t.Fatalf("the signer did not start: %v\n%s", err, s.cmd.Stderr)
	}
	if err := json.Unmarshal(line, s); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return s
}

// stop stops the signer as a runtime does.
func (s *served) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the signer ended with %v\n%s", err, s.cmd.Stderr)
	}
}

func (s *served) keys(t *testing.T) (keys jose.JSONWebKeySet) {
	t.Helper()
	call(t, s.Public+"/.well-known/jwks.json", "", "", &keys)
	return keys
}

// call posts a body with a credential, or gets if there is none.
func call(t *testing.T, url, credential, body string, answer any) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if credential != "" {
		request.Header.Set("Authorization", "Bearer "+credential)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
}

// authority is a certificate for 127.0.0.1 that signs itself, in PEM.
type authority struct{ certificate, key []byte }

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "image test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
