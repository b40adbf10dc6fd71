package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// errDeclined is what a question ends with that a person did not answer with y: the
// command failed, exit code 1.
var errDeclined = errors.New("declined: nothing was done")

// confirm asks a person a yes-or-no question on stderr. It returns nil for yes and
// errDeclined for all else. --yes answers it; without a person to ask, the error ends
// with exit code 3.
func (a *app) confirm(ctx context.Context, question string) error {
	if a.yes {
		return nil
	}
	if !a.person {
		return actf("%s Nothing was done: answer with --yes, or run it on a terminal", question)
	}
	fmt.Fprintf(a.stderr, "%s ", strings.Join(wrap(question+" [y/N]", columns-1), "\n"))

	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() { // a terminal read cannot be cancelled; the process ends soon after
		line, err := bufio.NewReader(a.stdin).ReadString('\n')
		got <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return context.Cause(ctx)
	case ans := <-got:
		switch strings.ToLower(strings.TrimSpace(ans.line)) {
		case "y", "yes":
			return nil
		}
		if ans.err != nil {
			fmt.Fprintln(a.stderr)
		}
		return errDeclined
	}
}
