package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// forgetTyped throws away what was typed at a terminal and not read yet. Of anything
// else it takes nothing.
func forgetTyped(in io.Reader) {
	if f, ok := in.(*os.File); ok {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) // what is no terminal says so
	}
}
