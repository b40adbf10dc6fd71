// Command load measures a signer: tokens a second, latencies, and the ratios that
// the design promises, each against a baseline that is measured in the same run.
// It starts real processes on a real Vault and a real Redis and drives them over
// sockets, on the same cores.
//
//	go run ./test/load                          # every row of the table
//	go run ./test/load -rows bolt,redis -for 5s
//	go run ./test/load -rows run -custody vault -store redis -face grpc -caller device -loop open -rate 100
//	go run ./test/load -write docs/load.md      # all of them, as the page shows them
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pactsigner/pactsigner/test/fleet"
)

// options are the command line.
type options struct {
	rows        string
	duration    time.Duration
	connections int
	devices     int
	output      string
	write       string

	// Of the row "run" alone.
	setup
	loop, face, caller string
	rate               float64
}

func main() {
	var o options
	flag.StringVar(&o.rows, "rows", "all", "which rows, by comma: all, "+strings.Join(rowNames(), ", ")+", or run for one of your own")
	flag.DurationVar(&o.duration, "for", 5*time.Second, "how long each part is measured")
	flag.IntVar(&o.connections, "connections", 64, "callers at a time in a closed loop")
	flag.IntVar(&o.devices, "devices", 1_000_000, "devices of the row devices")
	flag.StringVar(&o.output, "o", "text", "text or json")
	flag.StringVar(&o.write, "write", "", "also write the page to this `FILE`")
	flag.StringVar(&o.Custody, "custody", "local", "run: local, vault or wrapped")
	flag.StringVar(&o.Store, "store", "bolt", "run: bolt or redis")
	flag.IntVar(&o.Replicas, "replicas", 1, "run: how many signers")
	flag.BoolVar(&o.Audit, "audit", false, "run: Vault writes an audit log")
	flag.StringVar(&o.loop, "loop", "closed", "run: closed (each caller asks again when answered) or open (-rate)")
	flag.StringVar(&o.face, "face", "rest", "run: rest or grpc")
	flag.StringVar(&o.caller, "caller", "credential", "run: credential or device")
	flag.Float64Var(&o.rate, "rate", 100, "run: requests a second in an open loop")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "load: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	defer func() { fleet.Clean() }()
	names := strings.Split(o.rows, ",")
	if o.rows == "all" {
		names = rowNames()
	}
	for _, name := range names {
		if name != "run" && !slices.Contains(rowNames(), name) {
			return fmt.Errorf("-rows: %q is unknown (all, run, %s)", name, strings.Join(rowNames(), ", "))
		}
	}
	var measured []row
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(os.Stderr, "%s …\n", name)
		got, err := measure(ctx, o, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		measured = append(measured, got...)
	}
	if o.output == "json" {
		data, err := json.MarshalIndent(measured, "", "  ")
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", data)
	} else {
		fmt.Print(table(measured))
	}
	if o.write == "" {
		return nil
	}
	return writePage(o, measured)
}

// measure runs one of the table's parts on servers of its own.
func measure(ctx context.Context, o options, name string) (rows []row, err error) {
	b := &bench{ctx: ctx}
	defer b.close()
	defer func() {
		if p := recover(); p != nil {
			f, ours := p.(failure)
			if !ours {
				panic(p)
			}
			err = fmt.Errorf("%s", string(f))
		}
	}()
	if name == "run" {
		return single(b, o), nil
	}
	for _, part := range parts {
		if part.name == name {
			return part.run(b, o), nil
		}
	}
	return nil, nil
}

// row is one line of the table.
type row struct {
	What   string `json:"what"`
	Goal   string `json:"goal,omitempty"`
	Value  string `json:"value"`
	Held   *bool  `json:"held,omitempty"` // nil: there is no goal
	Detail string `json:"detail,omitempty"`
}

// held says whether a goal was reached.
func held(ok bool) *bool { return &ok }

func (r row) verdict() string {
	switch {
	case r.Held == nil:
		return ""
	case *r.Held:
		return "yes"
	}
	return "no"
}

func table(rows []row) string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tGOAL\tMEASURED\tHELD\tDETAIL")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.What, r.Goal, r.Value, r.verdict(), r.Detail)
	}
	w.Flush()
	return out.String()
}
