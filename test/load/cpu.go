package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// processorTime measures the processor time that each process spends on a token:
// what it takes to work out how many cores a rate needs.
func processorTime(b *bench, o options) []row {
	var rows []row
	for _, s := range []setup{{"wrapped", "redis", 1, false}, {"vault", "redis", 1, false}, {"vault", "redis", 1, true}} {
		inner := &bench{ctx: b.ctx}
		func() {
			defer inner.close()
			w := start(inner, s)
			custody := map[string]string{"wrapped": "wrapped custody", "vault": "Vault transit"}[s.Custody]
			if s.Audit {
				custody += ", audit device on"
			}
			connections := o.connections
			if s.Custody == "vault" {
				connections = 256
			}
			workers := w.dials(connections, w.credentials())
			closed(workers, warmUp)
			rows = append(rows, w.processorTime("credential, "+custody, func() result { return closed(workers, o.duration) }))
			if s.Custody == "wrapped" {
				requests := w.devices(min(int(3000*o.duration.Seconds()), 200_000), 100)
				rows = append(rows, w.processorTime("device, "+custody, func() result { return closed(w.dials(connections, requests), o.duration) }))
			}
		}()
	}
	return rows
}

func (w *world) processorTime(what string, run func() result) row {
	pids := map[string]int{"signer": w.Replicas[0].PID(), "Redis": w.redis.PID(), "Vault": w.vault.PID()}
	before := map[string]time.Duration{}
	for name, pid := range pids {
		before[name] = w.spent(pid)
	}
	r := run()
	each := func(name string) string {
		return fmt.Sprintf("%s %.0f µs", name, float64((w.spent(pids[name])-before[name]).Microseconds())/float64(max(r.good(), 1)))
	}
	return row{
		What: "processor time per token, " + what, Value: each("signer") + ", " + each("Redis") + ", " + each("Vault"), Detail: describe(r),
	}
}

// clockTick is the unit of /proc/PID/stat.
const clockTick = 10 * time.Millisecond

// spent is the processor time that a process has used.
func (w *world) spent(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		w.b.Fatalf("processor time: %v", err)
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name may hold spaces
	fields := strings.Fields(rest)
	var total time.Duration
	for _, i := range []int{11, 12} { // utime, stime
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			w.b.Fatalf("processor time: %v", err)
		}
		total += time.Duration(n) * clockTick
	}
	return total
}
