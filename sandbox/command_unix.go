//go:build unix

package sandbox

import (
	"os/exec"
	"syscall"
)

// asGroup has a command run in a process group of its own, which ends as a whole when
// the command's context does. end ends what is left of it.
func asGroup(cmd *exec.Cmd) (end func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error {
		if cmd.Process == nil {
			return nil
		}
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	cmd.Cancel = kill
	return func() { _ = kill() } // there is mostly nothing left
}
