package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// result is what a run measured.
type result struct {
	Took     time.Duration
	Statuses map[int]int // as on REST; 0: no answer
	// Latencies of all requests, sorted. Of an open loop they count from when the
	// request was due, not from when it was sent.
	Latencies []time.Duration
}

// good is how many were answered 200.
func (r result) good() int { return r.Statuses[200] }

// perSecond is how many were answered 200 each second.
func (r result) perSecond() float64 { return float64(r.good()) / r.Took.Seconds() }

// quantile is the latency that a part q of the requests kept to.
func (r result) quantile(q float64) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	return r.Latencies[min(int(q*float64(len(r.Latencies))), len(r.Latencies)-1)]
}

// sample is what one worker saw.
type sample struct {
	latencies []time.Duration
	statuses  map[int]int
}

func (s *sample) add(status int, took time.Duration) {
	s.latencies = append(s.latencies, took)
	s.statuses[status]++
}

func collect(samples []sample, took time.Duration) result {
	r := result{Took: took, Statuses: map[int]int{}}
	for _, s := range samples {
		r.Latencies = append(r.Latencies, s.latencies...)
		for status, n := range s.statuses {
			r.Statuses[status] += n
		}
	}
	slices.Sort(r.Latencies)
	return r
}

// call makes one request and returns its status; done says that there is nothing
// left to ask.
type call func() (status int, done bool)

// closed runs the workers for a time, each asking again as soon as it is answered.
func closed(workers []call, d time.Duration) result {
	samples := make([]sample, len(workers))
	var (
		stop    atomic.Bool
		running sync.WaitGroup
	)
	began := time.Now()
	for i, ask := range workers {
		samples[i].statuses = map[int]int{}
		running.Go(func() {
			for !stop.Load() {
				sent := time.Now()
				status, done := ask()
				if done {
					return
				}
				samples[i].add(status, time.Since(sent))
			}
		})
	}
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	defer timer.Stop()
	running.Wait()
	return collect(samples, time.Since(began))
}

// span is when a request was made and answered.
type span struct{ from, to time.Time }

// open asks at a rate, whether answers come or not, and tells each request's span.
// A request for which no worker is free waits, and that counts.
func open(workers []call, rate float64, d time.Duration, told func(span)) result {
	samples := make([]sample, len(workers))
	due := make(chan time.Time, int(rate*d.Seconds())+1)
	var running sync.WaitGroup
	for i, ask := range workers {
		samples[i].statuses = map[int]int{}
		running.Go(func() {
			for at := range due {
				sent := time.Now()
				status, done := ask()
				if done {
					return
				}
				now := time.Now()
				samples[i].add(status, now.Sub(at))
				if told != nil {
					told(span{sent, now})
				}
			}
		})
	}
	began := time.Now()
	each := time.Duration(float64(time.Second) / rate)
	for n := range int(rate * d.Seconds()) {
		at := began.Add(time.Duration(n) * each)
		time.Sleep(time.Until(at))
		due <- at
	}
	close(due)
	running.Wait()
	return collect(samples, time.Since(began))
}

// rawSignatures is how many ES256 signatures a second the machine's cores make,
// with nothing around them.
func rawSignatures(d time.Duration) float64 {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // the system has no randomness
	}
	digest := sha256.Sum256([]byte("pact"))
	workers := make([]call, runtime.GOMAXPROCS(0))
	for i := range workers {
		workers[i] = func() (int, bool) {
			if _, _, err := ecdsa.Sign(rand.Reader, key, digest[:]); err != nil {
				return 0, false
			}
			return 200, false
		}
	}
	return closed(workers, d).perSecond()
}
