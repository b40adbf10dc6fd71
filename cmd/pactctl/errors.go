package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pactsigner/pactsigner/agent"
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

// errSaid ends the program without a word: what is wrong was told already.
var errSaid = errors.New("told already")

// notThere says of what a profile does not have which command lists what it has.
func notThere(err error, what, id, list string) error {
	if errors.Is(err, agent.ErrNotFound) {
		return fmt.Errorf("there is no %s %q: pactctl %s lists them", what, id, list)
	}
	return err
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

// ourSecret is a credential or token as the signer and a running agent make them.
var ourSecret = regexp.MustCompile(`pact_(?:cred|enroll|admin|agent)_[A-Za-z0-9]{8,}`)

// withoutSecrets hides the arguments that look like secrets in an error's text: one
// that was typed in the wrong place must not be repeated.
func withoutSecrets(text string, args []string) string {
	for _, arg := range args {
		for _, part := range strings.SplitN(arg, "=", 2) { // --flag=value
			if ourSecret.MatchString(part) || agent.RedactText(part) != part {
				text = strings.ReplaceAll(text, part, agent.Redacted)
			}
		}
	}
	return text
}
