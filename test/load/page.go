package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/pactsigner/pactsigner/test/servers"
)

// writePage writes the table as docs show it.
func writePage(o options, rows []row) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# How fast it is

Measured by `+"`go run ./test/load -write docs/load.md`"+`, which starts everything on one machine: signers, Redis, Vault and the load
generator share its cores. Absolute numbers are that machine's; what counts are the ratios, each taken against a baseline that is
measured in the same run. "Raw ES256" is how many P-256 signatures a second the same cores make with nothing around them.

%d cores, %s, Vault %s, Redis %s; each part measured for %s with %d callers at a time unless it says otherwise.

| What | Goal | Measured | Held | |
| --- | --- | --- | --- | --- |
`, runtime.NumCPU(), runtime.Version(), servers.VaultVersion, redisVersion(), o.duration, o.connections)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.What, r.Goal, r.Value, r.verdict(), r.Detail)
	}
	return os.WriteFile(o.write, []byte(b.String()), 0o644)
}

// redisVersion is that of the system's redis-server.
func redisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return "unknown"
	}
	for word := range strings.FieldsSeq(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return v
		}
	}
	return "unknown"
}
