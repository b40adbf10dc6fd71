//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// ours reports a file that belongs to who runs this program.
func ours(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
