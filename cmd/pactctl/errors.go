package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The exit codes of every command.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitAct         = 3
	exitInterrupted = 130
)

// codedError carries the exit code that an error ends the program with.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// usagef returns an error that ends with exit code 2: the command line itself
// is wrong, and the same line will never work.
func usagef(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// actf returns an error that ends with exit code 3: a person must do something,
// which the message names.
func actf(format string, args ...any) error {
	return &codedError{exitAct, fmt.Errorf(format, args...)}
}

// exitCode is the code that the program ends with after err.
func exitCode(ctx context.Context, err error) int {
	var coded *codedError
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, &coded):
		return coded.code
	}
	return exitFailed
}

// oneLine folds an error's text to a single line without control characters.
func oneLine(s string) string {
	return strings.Join(strings.Fields(clean(s)), " ")
}
