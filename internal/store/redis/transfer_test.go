package redis

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
	"github.com/pactsigner/pactsigner/test/servers"
)

// few records of a store.
func few() []signer.Record {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	e := audit.Chain(0, "", acting("before", "the move"))
	return []signer.Record{
		{Device: &signer.Device{Issuer: testIssuer, Thumbprint: "thumb", Subject: "pa_thumb", Point: make([]byte, 64), EnrolledAt: at, LastSignedAt: at}},
		{Audience: &signer.Audience{Issuer: testIssuer, Origin: "https://x.example.com", Audience: "pact:x", SetAt: at, SetBy: "tester"}},
		{Switch: &killswitch.State{Epoch: 7, Entries: []killswitch.Entry{{ID: "k", Scope: killswitch.Scope{Kind: killswitch.All}, Time: at, Epoch: 7}}}},
		{Schedule: &signer.MirroredSchedule{Issuer: testIssuer, Revision: 4, Document: []byte("doc")}},
		{Audit: &e},
	}
}

// from yields records, then io.EOF; between them meanwhile is called, once.
func from(list []signer.Record, meanwhile func()) func() (signer.Record, error) {
	return func() (signer.Record, error) {
		if len(list) == 0 {
			return signer.Record{}, io.EOF
		}
		if r := list[0]; meanwhile == nil || len(list) > 1 {
			list = list[1:]
			return r, nil
		}
		meanwhile()
		meanwhile = nil
		r := list[0]
		list = list[1:]
		return r, nil
	}
}

// An import brings the switch along: epoch and change are those that beats and signs
// go by, in all slots.
func TestImportedSwitch(t *testing.T) {
	s := unmarked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrUnmarked) {
		t.Fatalf("a beat before the mark: %v", err)
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	g := beat(t, s, "a")
	if state := stateOf(t, s); g.Epoch != 7 || g.Change == "" || g.Change != state.Change || liveIDs(state) != "k" || g.Revisions[testIssuer] != 4 {
		t.Fatalf("granted %+v on %+v", g, state)
	}
	call := signer.Authorization{Issuer: testIssuer, Kind: signer.DeviceCaller, Thumbprint: "thumb", Epoch: 6}
	if _, err := s.Authorize(t.Context(), call); !errors.Is(err, signer.ErrStaleEpoch) {
		t.Fatalf("a call on the epoch before: %v", err)
	}
	call.Epoch = 7
	if _, err := s.Authorize(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Kill(t.Context(), killAll("next"), 0, acting("kill", "next")); err != nil {
		t.Fatal(err)
	}
	if log := verifiedLog(t, s); len(log) != 2 {
		t.Fatalf("the log is %+v", log)
	}
}

// What lost its mark is not taken for empty; what an import has left is, also a
// whole one that was not marked.
func TestImportIsNotIntoRecords(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into a marked store: %v", err)
	}
	if err := s.AppendAudit(t.Context(), acting("x", "")); err != nil {
		t.Fatal(err)
	}
	for _, tag := range append(tagNames[:], globalSlot) {
		r.Do("DEL", s.markerKey(tag))
	}
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into a store that lost its marks: %v", err)
	}
	if n := r.Do("XLEN", "pact:{g}:log"); n != int64(1) {
		t.Fatalf("a refused import left %v entries", n)
	}
	r.Wipe()
	r.Do("SET", "other:{g}:x", "kept")
	for range 2 {
		if err := s.Import(t.Context(), from(few(), nil)); err != nil {
			t.Fatal(err)
		}
	}
	r.Do("HSET", s.markerKey("b07"), "id", testID) // a mark that was interrupted
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into a store that is being marked: %v", err)
	}
	r.Do("HDEL", s.markerKey("b07"), "id")
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if d, err := s.Device(t.Context(), testIssuer, "thumb"); err != nil || d.Subject != "pa_thumb" {
		t.Fatalf("the device is %+v, %v", d, err)
	}
	if r.Do("GET", "other:{g}:x") != "kept" {
		t.Error("another one's key is gone")
	}
}

// Of two imports at once one wins as a whole; so it is with an import and a mark.
func TestImportThatWasOvertaken(t *testing.T) {
	for name, overtake := range map[string]func(t *testing.T, s *Store) error{
		"by another import": func(t *testing.T, s *Store) error {
			other := []signer.Record{{Device: &signer.Device{Issuer: testIssuer, Thumbprint: "other", Subject: "pa_other", Point: make([]byte, 64)}}}
			return s.Import(t.Context(), from(other, nil))
		},
		"by a mark": func(t *testing.T, s *Store) error { return s.Mark(t.Context(), testID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := servers.StartRedis(t, servers.RedisOptions{})
			s, two := unmarked(t, onServer(r)), unmarked(t, onServer(r))
			list := few()
			for i := range maxImportBatch { // so that some are written by then
				list = append(list, signer.Record{Device: &signer.Device{Issuer: testIssuer, Thumbprint: fmt.Sprint(i), Subject: "pa_x", Point: make([]byte, 64)}})
			}
			err := s.Import(t.Context(), from(list, func() {
				if err := overtake(t, two); err != nil {
					t.Errorf("overtake: %v", err)
				}
			}))
			if err == nil {
				t.Fatal("the import that was overtaken succeeded")
			}
			if err := s.Mark(t.Context(), testID); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Device(t.Context(), testIssuer, "thumb"); !errors.Is(err, signer.ErrNotFound) {
				t.Fatalf("it left something: %v", err)
			}
		})
	}
}

func TestImportRefusesNonsense(t *testing.T) {
	s := unmarked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	d := few()[0]
	late := audit.Chain(4, "x", acting("x", ""))
	for name, list := range map[string][]signer.Record{
		"one device twice":           {d, d},
		"one audience twice":         {few()[1], few()[1]},
		"a log with a gap":           {{Audit: &late}},
		"nothing":                    {{}},
		"a device without subject":   {{Device: &signer.Device{Issuer: testIssuer, Thumbprint: "x"}}},
		"an epoch beyond counting":   {{Switch: &killswitch.State{Epoch: 1 << 60}}},
		"a revision beyond counting": {{Schedule: &signer.MirroredSchedule{Issuer: testIssuer, Revision: 1 << 60}}},
	} {
		if err := s.Import(t.Context(), from(list, nil)); err == nil {
			t.Errorf("%s was imported", name)
		}
	}
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
}

// What was moved to a cluster and back is what it was.
func TestMoveToAClusterAndBack(t *testing.T) {
	cluster := servers.StartCluster(t, 3, 0)
	single := servers.StartRedis(t, servers.RedisOptions{})
	list := few()
	for i := range 700 {
		list = append(list, signer.Record{Device: &signer.Device{
			Issuer: testIssuer, Thumbprint: fmt.Sprint("more", i), Subject: fmt.Sprint("pa_", i), Point: make([]byte, 64), EnrolledAt: time.Unix(1795000000+int64(i), 0).UTC(),
		}})
	}
	for _, o := range []Options{{Mode: Cluster, Addrs: cluster.Addrs()}, onServer(single)} {
		s := unmarked(t, o)
		if err := s.Import(t.Context(), from(list, nil)); err != nil {
			t.Fatal(err)
		}
		if err := s.Mark(t.Context(), testID); err != nil {
			t.Fatal(err)
		}
		want := len(list)
		list = nil
		err := s.Export(t.Context(), func(r signer.Record) error { list = append(list, r); return nil })
		if err != nil || len(list) != want {
			t.Fatalf("of %d records %d came out: %v", want, len(list), err)
		}
	}
}
