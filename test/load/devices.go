package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/signer"
)

// manyDevices measures what a million devices cost: bytes in Redis, memory of a
// replica, and a sign by the same thousand before and after the others came. A sign
// by any of the million mostly misses the cache of keys, which costs one question
// to Redis more.
func manyDevices(b *bench, o options) []row {
	const few = 1000
	w := start(b, setup{"local", "redis", 1, false})
	requests := func(n, among int) requests {
		list := make([][]byte, n)
		parallel(n, func(i int) {
			d := newDevice(rand.IntN(among))
			list[i] = w.signWith("PACT-Device " + d.assertion(w.Issuer+"/pact/sign"))
		})
		return oneByOne(list)
	}
	n := int(3000 * o.duration.Seconds())
	w.fill(0, few)
	before, rss := w.redisMemory(), w.memory()
	closed(w.dials(o.connections, requests(n, few)), o.duration) // fill the cache of keys
	small := closed(w.dials(o.connections, requests(n, few)), o.duration)
	w.fill(few, o.devices)
	for w.expiring() > o.devices/100 { // those of enrolments, and of the signs before
		time.Sleep(time.Second)
	}
	each := float64(w.redisMemory()-before) / float64(o.devices-few)
	same := closed(w.dials(o.connections, requests(n, few)), o.duration)
	ratio := same.perSecond() / small.perSecond()
	var any result
	for range 4 { // and fill the cache of keys
		any = closed(w.dials(o.connections, requests(n, o.devices)), o.duration)
	}
	grown := float64(w.memory()-rss) / (1 << 20)
	return []row{
		{
			What: fmt.Sprintf("%d devices in Redis", o.devices), Goal: "≤ 512 bytes each", Value: fmt.Sprintf("%.0f bytes each", each), Held: held(each <= 512),
		},
		{
			What: fmt.Sprintf("memory of a replica when %d devices call", o.devices), Goal: "key cache ≤ 32 MiB", Value: fmt.Sprintf("+%.0f MiB resident", grown),
			Held: held(grown <= 32), Detail: fmt.Sprintf("from %.0f MiB before them", float64(rss)/(1<<20)),
		},
		{
			What: fmt.Sprintf("sign by one of %d devices, with %d enrolled against %d", few, o.devices, few), Goal: "flat", Value: fmt.Sprintf("%.2f ×", ratio), Held: held(ratio >= .9),
			Detail: describe(same) + "; before: " + describe(small),
		},
		{
			What: fmt.Sprintf("sign by any of %d devices", o.devices), Value: fmt.Sprintf("%.2f ×", any.perSecond()/small.perSecond()),
			Detail: describe(any) + "; the key is mostly not in the cache",
		},
	}
}

// fill puts the devices with numbers from to to-1 into the store, as enrolments do.
func (w *world) fill(from, to int) {
	// The jtis of enrolments go at once: they are not what a device costs.
	store, err := redis.Open(redis.Options{Mode: "standalone", Addrs: []string{w.redis.Addr()}, Replay: time.Millisecond})
	if err != nil {
		w.b.Fatalf("%v", err)
	}
	defer store.Close()
	id, err := store.Identity(w.b.ctx)
	if err != nil {
		w.b.Fatalf("%v", err)
	}
	store.Expect(id.ID)
	state, err := store.State(w.b.ctx)
	if err != nil {
		w.b.Fatalf("%v", err)
	}
	var failed atomic.Value
	const workers = 64
	parallelBy(workers, to-from, func(i int) {
		d := newDevice(from + i)
		var jti signer.Hash
		copy(jti[:], fmt.Sprintf("fill %d", from+i))
		_, err := store.Enroll(w.b.ctx, signer.Enrolment{
			Device: signer.Device{Issuer: w.Issuer, Thumbprint: d.thumbprint, Subject: "pa_" + strings.ToLower(d.thumbprint[:32]), Point: d.point},
			JTI:    jti, Epoch: state.Epoch,
		})
		if err != nil {
			failed.CompareAndSwap(nil, err)
		}
	})
	if err, _ := failed.Load().(error); err != nil {
		w.b.Fatalf("enrol: %v", err)
	}
}

// redisMemory is what Redis holds.
func (w *world) redisMemory() int64 {
	info, _ := w.redis.Do("INFO", "memory").(string)
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "used_memory_dataset:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			if err != nil {
				w.b.Fatalf("INFO memory: %v", err)
			}
			return n
		}
	}
	w.b.Fatalf("INFO memory does not tell used_memory_dataset")
	return 0
}

// expiring is how many keys go by themselves.
func (w *world) expiring() int {
	info, _ := w.redis.Do("INFO", "keyspace").(string)
	_, rest, ok := strings.Cut(info, "expires=")
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(digits)
	if err != nil {
		w.b.Fatalf("INFO keyspace: %v", err)
	}
	return n
}

// memory is the first replica's resident memory, by its own metrics.
func (w *world) memory() int64 {
	resp, err := http.Get("http://" + w.Replicas[0].Ops + "/metrics")
	if err != nil {
		w.b.Fatalf("metrics: %v", err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "process_resident_memory_bytes "); ok {
			n, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				w.b.Fatalf("metrics: %v", err)
			}
			return int64(n)
		}
	}
	w.b.Fatalf("metrics do not tell process_resident_memory_bytes")
	return 0
}
