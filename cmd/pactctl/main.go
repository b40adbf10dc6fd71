// Command pactctl is the operator's tool for a signer, and a complete PACT
// personal agent on the command line.
//
// # How it is put together
//
// One file per noun. A noun's file has a constructor `newXCmd(app *app)
// *cobra.Command` that is added to the tree in root.go, and the functions that
// print that noun. What all commands share:
//
//   - app (root.go): the streams, the clock, the answers to --output and --yes.
//   - app.print (print.go): text for people or JSON for programs, from one call.
//   - app.confirm (ask.go): asks a person, or ends with exit code 3.
//   - usagef and actf (errors.go): errors with exit codes 2 and 3.
//   - operate (operator.go): a connection to the admin listener of a signer.
//
// # Exit codes
//
// 0 done, 1 failed, 2 wrong usage, 3 a person must act, 130 interrupted; a second
// interrupt ends the process at once. An error is one line on stderr that begins with
// "pactctl: " and says what to do.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second one ends the process at once
	code := newApp().run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
