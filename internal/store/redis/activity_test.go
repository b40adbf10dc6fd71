package redis

import (
	"fmt"
	"testing"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// To tell and to ask is one command each; what is too old is removed as something is
// told, and what is damaged hides nothing else.
func TestActivityOfAFleet(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	var offset atomicDuration
	o := onServer(r)
	o.Offset = offset.load
	s := marked(t, o)
	put := func(run string) {
		t.Helper()
		if err := s.PutActivity(t.Context(), run, []byte("data")); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (runs []string) {
		t.Helper()
		list, _, err := s.Activities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			runs = append(runs, a.Run)
		}
		return runs
	}
	put("first") // connections and scripts are there
	read()
	before, _ := commands(t, r)
	for i := range 100 {
		put(fmt.Sprint("run ", i))
	}
	read()
	if after, _ := commands(t, r); after-before != 101 {
		t.Errorf("to tell 100 times and to ask once took %d commands", after-before)
	}
	r.Do("HSET", "pact:{g}:activity", "run 7", "garbage")
	if got := read(); len(got) != 100 {
		t.Errorf("beside a damaged record %d are read, want 100", len(got))
	}
	offset.add(signer.ActivityKept + 1)
	put("last")
	put("last")
	if kept, told := r.Do("HLEN", "pact:{g}:activity"), r.Do("ZCARD", "pact:{g}:told"); kept != int64(1) || told != int64(1) {
		t.Errorf("%v and %v records are left", kept, told)
	}
}

// A store whose memory is full refuses what is told, and gives permits on.
func TestActivityInAFullStore(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); err != nil {
		t.Fatal(err)
	}
	r.Do("CONFIG", "SET", "maxmemory", "1")
	defer r.Do("CONFIG", "SET", "maxmemory", "0")
	if err := s.PutActivity(t.Context(), "run", []byte("data")); err == nil {
		t.Error("a full store took it")
	}
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); err != nil {
		t.Errorf("a beat is refused: %v", err)
	}
}
