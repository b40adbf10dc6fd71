//go:build unix

package sandbox

import "golang.org/x/sys/unix"

// mayWrite tells whether this process may make files in a directory.
func mayWrite(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }
