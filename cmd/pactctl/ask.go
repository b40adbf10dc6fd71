package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	yes, err := a.agrees(ctx, question)
	if err == nil && !yes {
		err = errDeclined
	}
	return err
}

// agrees reports whether a person answers a question on stderr with y; what is no
// answer is no. The error is that the context ended.
func (a *app) agrees(ctx context.Context, question string) (bool, error) {
	lines := a.answers()
	lines.forget()
	fmt.Fprintf(a.stderr, "%s ", strings.Join(wrap(question+" [y/N]", columns-1), "\n"))
	answer, err := lines.next(ctx)
	if err != nil && err != errLongLine {
		fmt.Fprintln(a.stderr) // nobody pressed return
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil && isYes(answer), nil
}

func isYes(answer string) bool {
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

// answers are the lines of the person, which all questions of a command read.
func (a *app) answers() *lineReader {
	if a.lines == nil {
		a.lines = &lineReader{in: a.stdin}
	}
	return a.lines
}

// lineReader reads the lines of an input one by one, when they are asked for. A context
// can end a wait; the line that was waited for is then the next one's.
type lineReader struct {
	in  io.Reader
	buf *bufio.Reader
	got chan line // of the read that is under way; nil: none is
}

// line is a line without its end, or why there is none.
type line struct {
	text string
	err  error
}

// maxLine is more than a message ever has, in bytes.
const maxLine = 1 << 16

var errLongLine = fmt.Errorf("the line has more than %d bytes", maxLine)

// readLine reads a line, of a long one also the rest.
func readLine(r *bufio.Reader) line {
	var text []byte
	for long := false; ; {
		part, more, err := r.ReadLine()
		switch long = long || len(text)+len(part) > maxLine; {
		case err != nil && len(text) == 0:
			return line{err: io.EOF} // a reader that failed has no more
		case long:
			text = []byte{0}
		default:
			text = append(text, part...)
		}
		if more && err == nil {
			continue
		}
		if long {
			return line{err: errLongLine}
		}
		return line{text: string(text)}
	}
}

// forget throws away what a person typed before a question: it is no answer to that
// (AP-1).
func (r *lineReader) forget() {
	forgetTyped(r.in)
	select {
	case <-r.got: // read, and not asked for any more
		r.got = nil
	default:
	}
	if r.buf != nil && r.got == nil {
		_, _ = r.buf.Discard(r.buf.Buffered()) // what is there can be discarded
	}
}

// next is the next line. Errors are errLongLine, io.EOF or the context's cause.
func (r *lineReader) next(ctx context.Context) (string, error) {
	if r.got == nil {
		if r.buf == nil {
			r.buf = bufio.NewReader(r.in)
		}
		r.got = make(chan line, 1)
		go func() { r.got <- readLine(r.buf) }() // a terminal read cannot be cancelled; the process ends soon after
	}
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case l := <-r.got:
		r.got = nil
		return l.text, l.err
	}
}
