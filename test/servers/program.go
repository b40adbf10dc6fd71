package servers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// VaultVersion is the version of Vault that the tests run against.
const VaultVersion = "1.21.0"

// GatewayAPI is the module that defines the Gateway API's types.
const GatewayAPI = "sigs.k8s.io/gateway-api@v1.6.3"

// Program is a program that the tests run, built from its Go module.
type Program struct {
	Name    string
	Version string // of the module, without its v
	Folder  string // of the module that requires it, from the repository's root
	Package string
	Tags    string // of the build
}

// Programs are all of them.
var Programs = []Program{
	// Tag minimal leaves out the engines and stores of other vendors.
	{Name: "vault", Version: VaultVersion, Folder: "test/servers/vault", Package: ".", Tags: "minimal"},
	{Name: "helm", Version: "3.22.0", Folder: "tools/chart", Package: "helm.sh/helm/v3/cmd/helm"},
	// The tag leaves out the clients of every cloud.
	{Name: "promtool", Version: "0.316.0", Folder: "tools/chart", Package: "github.com/prometheus/prometheus/cmd/promtool", Tags: "remove_all_sd"},
	{Name: "kubectl-validate", Version: "0.0.4", Folder: "tools/validate", Package: "sigs.k8s.io/kubectl-validate"},
}

// Binary is where the built program is kept.
func (p Program) Binary() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("servers: where is the user's cache: %w", err)
	}
	return filepath.Join(cache, "pactsigner", p.Name+"-"+p.Version), nil
}

// Find returns the path of one of Programs. It is an error that says what to do if
// it was not built.
func Find(name string) (string, error) {
	i := slices.IndexFunc(Programs, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return "", fmt.Errorf("servers: no program %q", name)
	}
	binary, err := Programs[i].Binary()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("servers: no %s: run `go run ./test/servers/get`", binary)
	} else if err != nil {
		return "", fmt.Errorf("servers: %w", err)
	}
	return binary, nil
}
