package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/vault/api"
)

// VaultOptions say how Vault runs. The zero value audits nothing.
type VaultOptions struct {
	// Audit makes it write an audit log to a file, as production does.
	Audit bool
	// TLS makes it speak TLS. CAFile tells how to reach it.
	TLS bool
}

// Vault is a running Vault with its own (raft) storage, initialised and unsealed.
type Vault struct {
	Addr      string // URL
	RootToken string

	t   T
	p   *process
	key string // unseals it
	pki *pki
}

// StartVault starts a Vault that holds nothing yet.
func StartVault(t T, o VaultOptions) *Vault {
	t.Helper()
	binary, err := Find("vault")
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir := t.TempDir()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t, 0)))
	peer := net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t, 0)))
	v := &Vault{t: t, Addr: "http://" + address}
	listener := "tls_disable = true"
	if o.TLS {
		v.pki = newPKI(t)
		v.Addr = "https://" + address
		listener = fmt.Sprintf("tls_cert_file = %q\n  tls_key_file = %q", v.pki.cert, v.pki.key)
	}
	file := filepath.Join(dir, "vault.hcl")
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatalf("servers: %v", err)
	}
	conf := fmt.Sprintf("storage \"raft\" {\n  path = %q\n  node_id = \"one\"\n  performance_multiplier = 1\n}\n"+
		"listener \"tcp\" {\n  address = %q\n  cluster_address = %q\n  %s\n}\n"+
		"api_addr = %q\ncluster_addr = \"https://%s\"\ndisable_mlock = true\nlog_level = \"warn\"\n",
		data, address, peer, listener, v.Addr, peer)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatalf("servers: %v", err)
	}
	v.p = &process{t: t, name: "vault", path: binary, args: []string{"server", "-config", file}}
	t.Cleanup(v.Kill)
	v.p.start()
	v.p.await(func() error {
		init, err := v.Client().Sys().InitStatus()
		if err == nil && init {
			return errors.New("it is initialised already")
		}
		return err
	})
	resp, err := v.Client().Sys().Init(&api.InitRequest{SecretShares: 1, SecretThreshold: 1})
	if err != nil {
		t.Fatalf("servers: initialise vault: %v", err)
	}
	v.key, v.RootToken = resp.KeysB64[0], resp.RootToken
	v.Unseal()
	if o.Audit {
		err := v.Client().Sys().EnableAuditWithOptions("file", &api.EnableAuditOptions{
			Type: "file", Options: map[string]string{"file_path": filepath.Join(dir, "audit.log")},
		})
		if err != nil {
			t.Fatalf("servers: vault's audit device: %v", err)
		}
	}
	return v
}

// CAFile is the file with the certificate that the server's is signed with; empty
// without TLS.
func (v *Vault) CAFile() string {
	if v.pki == nil {
		return ""
	}
	return v.pki.ca
}

// Client returns a client with the root token.
func (v *Vault) Client() *api.Client {
	v.t.Helper()
	cfg := api.DefaultConfig()
	cfg.Address, cfg.Timeout, cfg.MaxRetries = v.Addr, 3*time.Minute, 0 // Vault may take long to make an RSA key of 4096 bits
	if v.pki != nil {
		if err := cfg.ConfigureTLS(&api.TLSConfig{CACert: v.pki.ca}); err != nil {
			v.t.Fatalf("servers: %v", err)
		}
	}
	c, err := api.NewClient(cfg)
	if err != nil {
		v.t.Fatalf("servers: %v", err)
	}
	c.SetToken(v.RootToken)
	return c
}

// PID is its process id while it runs.
func (v *Vault) PID() int { return v.p.pid() }

// Seal seals it: it answers, and does nothing more.
func (v *Vault) Seal() {
	v.t.Helper()
	if err := v.Client().Sys().SealWithContext(v.t.Context()); err != nil {
		v.t.Fatalf("servers: seal vault: %v", err)
	}
}

// Unseal unseals it and waits until it serves.
func (v *Vault) Unseal() {
	v.t.Helper()
	v.p.await(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.t.Context()), startTimeout)
		defer cancel()
		status, err := v.Client().Sys().UnsealWithContext(ctx, v.key)
		if err == nil && status.Sealed {
			err = errors.New("it is sealed")
		}
		if err != nil {
			return err
		}
		health, err := v.Client().Sys().HealthWithContext(ctx)
		if err == nil && (health.Standby || health.Sealed) {
			err = errors.New("it does not serve yet")
		}
		return err
	})
}

// Start starts it again after Stop or Kill, and unseals it.
func (v *Vault) Start() {
	v.t.Helper()
	v.p.start()
	v.Unseal()
}

// Stop ends it in order.
func (v *Vault) Stop() { v.p.end(syscall.SIGTERM) }

// Kill ends it at once.
func (v *Vault) Kill() { v.p.end(syscall.SIGKILL) }

// Restart stops and starts it.
func (v *Vault) Restart() {
	v.t.Helper()
	v.Stop()
	v.Start()
}

// Pause stops it in its tracks; its connections stay open.
func (v *Vault) Pause() { v.p.signal(syscall.SIGSTOP) }

// Resume lets it go on.
func (v *Vault) Resume() { v.p.signal(syscall.SIGCONT) }
