package local

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/custody/custodytest"
)

func open(t *testing.T, dir string) *Keyring {
	t.Helper()
	k, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func TestConformance(t *testing.T) {
	custodytest.Run(t, func(t *testing.T) func() custody.Keyring {
		dir := t.TempDir()
		var last *Keyring
		return func() custody.Keyring {
			if last != nil {
				if err := last.Close(); err != nil {
					t.Fatal(err)
				}
			}
			last = open(t, dir)
			return last
		}
	})
}

func TestNothingPrivateIsReadable(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	if _, err := k.Create(t.Context(), "a", jose.ES256); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Swap(t.Context(), "doc", 0, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(text, k.subjectKey) {
			t.Errorf("%s holds the subject key in clear", path)
		}
		if strings.HasSuffix(path, ".age") && !bytes.HasPrefix(text, []byte("age-encryption.org/v1\n")) {
			t.Errorf("%s is not encrypted", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestIdentityThatOthersMayReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, plainIdentity)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{})
		if err == nil || !strings.Contains(err.Error(), "0600") || !strings.Contains(err.Error(), path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("second Open: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

func TestClosed(t *testing.T) {
	k := open(t, t.TempDir())
	if _, err := k.Create(t.Context(), "a", jose.ES256); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	digest := sha256.Sum256(nil)
	_, create := k.Create(t.Context(), "b", jose.ES256)
	_, _, public := k.Public(t.Context(), "a")
	_, sign := k.Sign(t.Context(), "a", digest[:])
	_, mac := k.MAC(t.Context(), nil)
	_, load := k.Load(t.Context(), "d")
	_, swap := k.Swap(t.Context(), "d", 0, nil)
	for i, err := range []error{create, public, sign, mac, load, swap, k.Disable(t.Context(), "a")} {
		if !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

func TestPassphrase(t *testing.T) {
	dir := t.TempDir()
	right := Options{Passphrase: "correct horse battery staple", workFactor: 10}
	k, err := Open(dir, right)
	if err != nil {
		t.Fatal(err)
	}
	before, err := k.MAC(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]Options{"none": {}, "wrong": {Passphrase: "hunter2"}} {
		if _, err := Open(dir, opts); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	k, err = Open(dir, right)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	after, err := k.MAC(t.Context(), []byte("x"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("MAC changed: %v", err)
	}
	if s := fmt.Sprintf("%v %+v %#v %s %q %x", right, right, right, right.Passphrase, right.Passphrase, right.Passphrase); strings.Contains(s, "horse") {
		t.Error(s)
	}

	plain := t.TempDir()
	if err := open(t, plain).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(plain, right); err == nil || !strings.Contains(err.Error(), plainIdentity) {
		t.Errorf("passphrase for a folder without one: %v", err)
	}
}

func TestMissingPiecesAreNeverMadeAnew(t *testing.T) {
	for _, missing := range []string{plainIdentity, subjectFile} {
		dir := t.TempDir()
		k := open(t, dir)
		if _, err := k.Create(t.Context(), "a", jose.ES256); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, missing)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); err == nil {
			t.Errorf("opened without %s", missing)
		}
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	digest := sha256.Sum256(nil)
	k := open(t, dir)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := k.Create(t.Context(), name, jose.ES256); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Swap(t.Context(), "doc", 0, []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Swap(t.Context(), "new", 0, []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	change := func(path, from, to string) {
		t.Helper()
		path = filepath.Join(dir, path)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(from)) {
			t.Fatalf("%s lacks %q: %s", path, from, text)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(from), []byte(to), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	change("documents/doc.json", `{"a":1}`, `{"a":2}`)
	change("documents/new.json", `"minReader":1`, `"minReader":2`)
	change("keys/a.age", "age-encryption.org/v1", "age-encryption.org/v2")
	change("keys/c.json", `"minReader": 1`, `"minReader": 2`)
	// The private half of another key under this one's name.
	other, err := os.ReadFile(filepath.Join(dir, "keys/c.age"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys/b.age"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "keys/c.age")); err != nil {
		t.Fatal(err)
	}

	k = open(t, dir)
	for _, name := range []string{"a", "b", "c"} {
		if _, err := k.Sign(t.Context(), name, digest[:]); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("Sign with damaged key %s: %v", name, err)
		}
	}
	for _, name := range []string{"doc", "new"} {
		if _, err := k.Load(t.Context(), name); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("Load of %s: %v", name, err)
		}
		if _, err := k.Swap(t.Context(), name, 0, nil); !errors.Is(err, custody.ErrUnavailable) {
			t.Errorf("Swap over %s: %v", name, err)
		}
	}
}

func TestCrashesAreRepaired(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	for _, name := range []string{"half", "disabled"} {
		if _, err := k.Create(t.Context(), name, jose.ES256); err != nil {
			t.Fatal(err)
		}
	}
	half, _, err := k.Public(t.Context(), "half")
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(dir, keysDir, "disabled.age")
	kept, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Disable(t.Context(), "disabled"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(private); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the private half of a disabled key: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	// As if killed: after the mark and before the removal; after the private half
	// and before the public one; in the middle of a file.
	if err := os.WriteFile(private, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, keysDir, "half.json")); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(dir, documentsDir, temporary+"123")
	if err := os.WriteFile(torn, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}

	k = open(t, dir)
	for _, path := range []string{private, torn} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
	if _, _, err := k.Public(t.Context(), "half"); !errors.Is(err, custody.ErrNotFound) {
		t.Errorf("half a key: %v", err)
	}
	if _, err := k.Create(t.Context(), "half", jose.RS256); !errors.Is(err, custody.ErrMismatch) {
		t.Errorf("half a key of another algorithm: %v", err)
	}
	pub, err := k.Create(t.Context(), "half", jose.ES256)
	if err != nil || !pub.(interface{ Equal(crypto.PublicKey) bool }).Equal(half) {
		t.Errorf("half a key was not adopted: %v", err)
	}
}

func TestFirstOpenThatWasInterrupted(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	// The identity is written last; without it and without keys the folder is new.
	if err := os.Remove(filepath.Join(dir, plainIdentity)); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// TestKilled kills a real process while it writes and checks that whatever it
// had acknowledged is there.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("CUSTODY_LOCAL_VICTIM"); dir != "" {
		victim(dir)
		return
	}
	dir := t.TempDir()
	for round := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "CUSTODY_LOCAL_VICTIM="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Let it acknowledge some writes, then kill it in the middle of the next.
		var acknowledged uint64
		for range 5 + 7*round {
			var revision uint64
			if _, err := fmt.Fscanf(out, "%d\n", &revision); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			acknowledged = revision
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		k := open(t, dir)
		d, err := k.Load(t.Context(), "doc")
		if err != nil || d.Revision < acknowledged || string(d.Data) != strconv.FormatUint(d.Revision, 10) {
			t.Fatalf("round %d: revision %d acknowledged, found %d %q, %v", round, acknowledged, d.Revision, d.Data, err)
		}
		for n := uint64(1); n <= acknowledged; n++ {
			if _, _, err := k.Public(t.Context(), "key-"+strconv.FormatUint(n, 10)); err != nil {
				t.Fatalf("round %d: key %d: %v", round, n, err)
			}
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// victim makes a key and swaps a document, says so, and goes on until killed.
func victim(dir string) {
	k, err := Open(dir, Options{})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	d, err := k.Load(ctx, "doc")
	if err != nil && !errors.Is(err, custody.ErrNotFound) {
		panic(err)
	}
	for revision := d.Revision; ; {
		next := strconv.FormatUint(revision+1, 10)
		if _, err := k.Create(ctx, "key-"+next, jose.ES256); err != nil {
			panic(err)
		}
		if revision, err = k.Swap(ctx, "doc", revision, []byte(next)); err != nil {
			panic(err)
		}
		fmt.Println(revision)
	}
}

func TestFileNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "A", "..", ".", "a/b", "a=2fb", "a%2fb", "ü", ".tmp-x", "a.json", "a b"} {
		f, err := fileName(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(f, "/\\ ") || strings.HasPrefix(f, ".") || strings.ToLower(f) != f {
			t.Errorf("%q is spelt %q", name, f)
		}
		if other, ok := seen[f]; ok {
			t.Errorf("%q and %q are both spelt %q", name, other, f)
		}
		seen[f] = name
	}
	for _, name := range []string{"", strings.Repeat("a", maxName+1), strings.Repeat("/", maxName/2)} {
		if _, err := fileName(name); !errors.Is(err, custody.ErrInvalid) {
			t.Errorf("%.10q…: %v", name, err)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	k, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	digest := sha256.Sum256(nil)
	for _, alg := range []jose.SignatureAlgorithm{jose.ES256, jose.RS256} {
		if _, err := k.Create(b.Context(), strings.ToLower(string(alg)), alg); err != nil {
			b.Fatal(err)
		}
		b.Run(string(alg), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.Sign(b.Context(), strings.ToLower(string(alg)), digest[:]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
