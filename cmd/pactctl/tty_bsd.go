//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// forgetTyped throws away what was typed at a terminal and not read yet. Of anything
// else it takes nothing.
func forgetTyped(in io.Reader) {
	const input = 1 // FREAD
	if f, ok := in.(*os.File); ok {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCFLUSH, input) // what is no terminal says so
	}
}
