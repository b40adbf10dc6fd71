package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// makeAdminToken makes the token that the harness and pactctl use at every replica.
func (f *Fleet) makeAdminToken(t T) {
	t.Helper()
	out, err := Signer(t, "token", "create", "--name", "tests", "--role", "admin", "-o", "json")
	var made struct{ Token, Hash string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &made)
	}
	if err != nil {
		t.Fatalf("signer token create: %v\n%s", err, out)
	}
	f.token, f.tokenHash, f.tokenFile = made.Token, made.Hash, filepath.Join(f.dir, "admin-token")
	if err := os.WriteFile(f.tokenFile, []byte(made.Token), 0o600); err != nil {
		t.Fatalf("admin token: %v", err)
	}
}

// pactctl prepares a run of pactctl against one replica.
func (f *Fleet) pactctl(via *Replica, args ...string) *exec.Cmd {
	cmd := exec.Command(f.binaries.Pactctl, append([]string{"--yes"}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+f.dir, "PACT_SERVER=http://"+via.Admin, "PACT_TOKEN_FILE="+f.tokenFile)
	return cmd
}

// Pactctl runs pactctl against a replica and returns what it printed.
func (f *Fleet) Pactctl(via *Replica, args ...string) (string, error) {
	var errs strings.Builder
	cmd := f.pactctl(via, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("pactctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return string(out), err
}

// MustPactctl fails the test unless the command succeeds.
func (f *Fleet) MustPactctl(t T, via *Replica, args ...string) string {
	t.Helper()
	out, err := f.Pactctl(via, args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// Kill is a kill as its operator saw it, by this process's clock.
type Kill struct {
	Thrown    time.Time     // before pactctl was started
	Effective time.Time     // when the line "Effective at" had been read
	After     time.Duration // as printed: effective, after it was thrown
	Confirmed int
	Silent    int
	Output    string
}

var (
	effectiveLine = regexp.MustCompile(`^Effective at .* \(([0-9.a-zµ]+) after it was thrown\)\.$`)
	confirmedLine = regexp.MustCompile(`^([0-9]+) replicas? confirmed, ([0-9]+) silent\.$`)
)

// ThrowKill runs pactctl kill with the arguments and returns when it has ended.
// line, if not nil, is called with each line as it is printed.
func (f *Fleet) ThrowKill(via *Replica, line func(string), args ...string) (Kill, error) {
	k := Kill{Thrown: time.Now()}
	cmd := f.pactctl(via, append([]string{"kill", "--reason", "test"}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return k, err
	}
	if err := cmd.Start(); err != nil {
		return k, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		now, text := time.Now(), lines.Text()
		k.Output += text + "\n"
		if m := effectiveLine.FindStringSubmatch(text); m != nil {
			k.Effective = now
			k.After, _ = time.ParseDuration(m[1]) // shown only
		}
		if m := confirmedLine.FindStringSubmatch(text); m != nil {
			k.Confirmed, _ = strconv.Atoi(m[1])
			k.Silent, _ = strconv.Atoi(m[2])
		}
		if line != nil {
			line(text)
		}
	}
	if err := cmd.Wait(); err != nil {
		return k, fmt.Errorf("pactctl kill %s: %w: %s%s", strings.Join(args, " "), err, k.Output, errs.String())
	}
	if k.Effective.IsZero() {
		return k, fmt.Errorf("pactctl kill %s never said that it is effective: %s", strings.Join(args, " "), k.Output)
	}
	return k, nil
}

// AdminClient connects to a replica's admin listener.
func (f *Fleet) AdminClient(t T, r *Replica) signerv1.AdminServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.Admin,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(f.token)))
	if err != nil {
		t.Fatalf("admin client: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return signerv1.NewAdminServiceClient(conn)
}

// bearer puts the admin token on every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }
