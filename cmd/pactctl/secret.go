package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// secretOut is where a secret goes that is shown this once: a new file of mode
// 0600, or stdout. It never goes anywhere else.
type secretOut struct {
	path string // "": stdout
	file *os.File
}

// flag adds --out.
func (s *secretOut) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.path, "out", "", "write the secret to a new `FILE` of mode 0600 instead of stdout")
}

// open makes the file before the secret is made, so that a bad path loses nothing.
func (s *secretOut) open() error {
	if s.path == "" {
		return nil
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--out: %s is there already, and a secret overwrites nothing: name another file", s.path)
	}
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	s.file = f
	return nil
}

// discard removes the file again when there is no secret to hold.
func (s *secretOut) discard() {
	if s.file != nil {
		s.file.Close()
		os.Remove(s.path)
	}
}

// write stores the secret in the file, if there is one.
func (s *secretOut) write(secret string) error {
	if s.file == nil {
		return nil
	}
	_, err := io.WriteString(s.file, secret+"\n")
	if err2 := s.file.Sync(); err == nil {
		err = err2
	}
	if err2 := s.file.Close(); err == nil {
		err = err2
	}
	if err != nil {
		return fmt.Errorf("the secret was made but could not be written to --out %s; revoke it and make another: %w", s.path, err)
	}
	return nil
}
