package redis

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	other := unmarked(t, onServer(r))
	other.Expect("another")
	if err := other.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into another deployment's store: %v", err)
	}
	if err := s.AppendAudit(t.Context(), acting("x", "")); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into a store with an audit log: %v", err)
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

// A store that was made, and that replicas wait at without a caller, is as good as an
// empty one. It loses its marker meanwhile, and with it everybody's permits.
func TestImportIntoAStoreJustMade(t *testing.T) {
	for name, o := range map[string]func(t *testing.T) Options{
		"standalone": func(t *testing.T) Options { return onServer(servers.StartRedis(t, servers.RedisOptions{})) },
		"cluster": func(t *testing.T) Options {
			return Options{Mode: Cluster, Addrs: servers.StartCluster(t, 3, 0).Addrs()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := marked(t, o(t))
			beat(t, s, "a")
			if err := s.Mirror(t.Context(), testIssuer, 9, []byte("the new keys")); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Merge(t.Context(), killswitch.State{Epoch: 11}); err != nil {
				t.Fatal(err)
			}
			list := few()
			list = append(list[:3], list[4]) // without the schedule, as an import comes
			broken := errors.New("the file cannot be read any more")
			if err := s.Import(t.Context(), func() (signer.Record, error) { return signer.Record{}, broken }); !errors.Is(err, broken) {
				t.Fatal(err)
			}
			if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrUnmarked) {
				t.Fatalf("a beat after an import that was cut short: %v", err)
			}
			if err := s.Import(t.Context(), from(list, nil)); err != nil {
				t.Fatal(err)
			}
			if err := s.Mark(t.Context(), "the next"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrForeign) {
				t.Fatalf("a beat that expects the marker of before: %v", err)
			}
			s.Expect("the next")
			if g := beat(t, s, "a"); g.Epoch < 7 || len(g.Revisions) != 0 {
				t.Fatalf("granted %+v", g)
			}
			if d, err := s.Device(t.Context(), testIssuer, "thumb"); err != nil || d.Subject != "pa_thumb" {
				t.Fatalf("the device is %+v, %v", d, err)
			}
			if n, _, err := s.Counts(t.Context(), testIssuer); err != nil || n != 1 {
				t.Fatalf("%d devices count, %v", n, err)
			}
		})
	}
}

// An import that was cut short while it took the slots one after another is repeated.
func TestImportThatTookSomeSlots(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	cut := importing{store: s, id: "cut"}
	if _, err := cut.take(t.Context(), []string{globalSlot, "b00", "b7f"}, claim{marks: []string{testID}, empty: true}, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if log := verifiedLog(t, s); len(log) != 1 {
		t.Fatalf("the log is %+v", log)
	}
}

// Somebody who enrols while the slots are taken is not lost: the import gives the
// slots back as they were.
func TestImportGivesBackWhatIsUsed(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	enroll(t, s, 1)
	in := importing{store: s, id: "in"}
	taken, err := in.take(t.Context(), []string{globalSlot}, claim{marks: []string{testID}, empty: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	more, err := in.take(t.Context(), tagNames[:], claim{marks: []string{testID}, empty: true}, false)
	if !errors.Is(err, signer.ErrNotEmpty) || len(more) != tags-1 {
		t.Fatalf("with a device %d slots were taken: %v", len(more), err)
	}
	if _, err := s.Beat(t.Context(), killswitch.Beat{Replica: "a"}); !errors.Is(err, ErrUnmarked) {
		t.Fatalf("meanwhile: %v", err)
	}
	for _, slots := range []map[string]string{taken, more} {
		if err := in.giveBack(t.Context(), slots); err != nil {
			t.Fatal(err)
		}
	}
	want := Identity{ID: testID, Tags: tags, Records: true, Format: format, MinReader: minReader}
	if id, err := s.Identity(t.Context()); err != nil || id != want {
		t.Fatalf("given back it says %+v, %v", id, err)
	}
	if err := s.Import(t.Context(), from(few(), nil)); !errors.Is(err, signer.ErrNotEmpty) {
		t.Fatalf("into a store with a device: %v", err)
	}
	for _, slot := range append([]string{globalSlot}, tagNames[:]...) {
		if r.Do("HEXISTS", s.markerKey(slot), "importing") != int64(0) {
			t.Fatalf("slot %s is an import's", slot)
		}
	}
	if n, _, err := s.Counts(t.Context(), testIssuer); err != nil || n != 1 {
		t.Fatalf("%d devices count, %v", n, err)
	}
}

// A store that was given up is replaced, but for its switch.
func TestImportOver(t *testing.T) {
	r := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(r))
	populate(t, s)
	if _, _, err := s.Kill(t.Context(), killAll("newer"), 0, acting("kill", "newer")); err != nil {
		t.Fatal(err)
	}
	before := stateOf(t, s)
	if err := s.ImportOver(t.Context(), testID, func() (signer.Record, error) { return signer.Record{}, io.EOF }); err != nil {
		t.Fatal(err)
	}
	if err := s.ImportOver(t.Context(), "", from(few(), nil)); err != nil { // what the last one left
		t.Fatal(err)
	}
	if err := s.Mark(t.Context(), "given up"); err != nil {
		t.Fatal(err)
	}
	if err := s.ImportOver(t.Context(), "another", from(few(), nil)); !errors.Is(err, ErrForeign) {
		t.Fatalf("over another deployment's store: %v", err)
	}
	s.Expect("given up")
	beat(t, s, "a") // nothing was changed
	e := enrolment(2)
	e.Epoch = stateOf(t, s).Epoch
	if _, err := s.Enroll(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	before = stateOf(t, s)
	s.Expect("the one that custody knows")
	for _, tag := range []string{"b00", "b01"} { // a mark that was cut short, and a part that was lost
		r.Do("HSET", s.markerKey(tag), "id", "the one that custody knows")
		r.Do("DEL", s.markerKey(tag[:2]+"2"))
	}
	if err := s.ImportOver(t.Context(), "given up", from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	s.Expect(testID)
	if state := stateOf(t, s); liveIDs(state) != "k newer" || state.Epoch <= before.Epoch && state.Change == before.Change {
		t.Fatalf("the switch is %+v, and was %+v", state, before)
	}
	if log := verifiedLog(t, s); len(log) != 1 {
		t.Fatalf("the log is %+v", log)
	}
	if list, _, err := s.Devices(t.Context(), testIssuer, signer.Page{}); err != nil || len(list) != 1 || list[0].Thumbprint != "thumb" {
		t.Fatalf("the devices are %+v, %v", list, err)
	}
	if d, c, err := s.Counts(t.Context(), testIssuer); err != nil || d != 1 || c != 0 {
		t.Fatalf("%d devices and %d credentials count, %v", d, c, err)
	}
}

// An import that was overtaken while it removed what was there removes nothing of
// the other one's.
func TestClearOfAnImportOvertaken(t *testing.T) {
	s := unmarked(t, onServer(servers.StartRedis(t, servers.RedisOptions{})))
	if err := s.Import(t.Context(), from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.clear(t.Context(), "overtaken"); err == nil {
		t.Fatal("it removed the other one's records")
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Device(t.Context(), testIssuer, "thumb"); err != nil {
		t.Fatal(err)
	}
}

// A store whose {g} is lost is emptied before it bears a mark again: none of its
// credentials signs on, unseen. Its other slots, and what is not its own, are looked at
// first.
func TestMarkEmpty(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	populate(t, s)
	server.Do("SET", "other", "1")
	for _, key := range server.Do("KEYS", "pact:{g}:*").([]any) {
		server.Do("DEL", key)
	}

	server.Do("HSET", s.markerKey("bff"), "id", "another")
	if err := s.MarkEmpty(t.Context(), "next", testID); !errors.Is(err, ErrForeign) {
		t.Fatalf("with a slot of another deployment: %v", err)
	}
	if _, err := s.Authorize(t.Context(), byCredential(1)); err != nil {
		t.Fatalf("something was changed: %v", err)
	}
	server.Do("HSET", s.markerKey("bff"), "id", testID)

	s.Expect("next") // as custody says by now
	if err := s.MarkEmpty(t.Context(), "next", testID); err != nil {
		t.Fatal(err)
	}
	for what, call := range map[string]signer.Authorization{"credential": byCredential(1), "device": byDevice(1, rand.Int())} {
		var refused *signer.RefusedError
		if _, err := s.Authorize(t.Context(), call); !errors.As(err, &refused) || refused.Why != "unknown" {
			t.Errorf("a %s that nobody can list: %v", what, err)
		}
	}
	if id, err := s.Identity(t.Context()); err != nil || id.ID != "next" || id.Tags != tags {
		t.Errorf("the store says %+v of itself, %v", id, err)
	}
	if server.Do("EXISTS", "other") != int64(1) {
		t.Error("what was not its own is gone")
	}
	populate(t, s)
}

// The switch outlives the emptying of a store that has it, and so does its end in all
// slots; an emptying that was interrupted is repeated.
func TestMarkEmptyKeepsTheSwitch(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	populate(t, s)
	e, _, err := s.Kill(t.Context(), killAll("k"), 0, acting("kill", "k"))
	if err != nil {
		t.Fatal(err)
	}
	server.Do("HDEL", s.markerKey(globalSlot), "id")
	in := importing{store: s, id: "interrupted"}
	if err := in.beginOver(t.Context(), []string{testID}); err != nil {
		t.Fatal(err)
	}
	if err := in.end(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.MarkEmpty(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if g, state := beat(t, s, "a"), stateOf(t, s); g.Epoch != e.Epoch || g.Change == "" || liveIDs(state) != "k" {
		t.Fatalf("granted %+v on %+v", g, state)
	}
	if log := verifiedLog(t, s); len(log) != 0 {
		t.Fatalf("the log is %+v", log)
	}
	call := byCredential(1)
	call.Epoch = e.Epoch - 1
	if _, err := s.Authorize(t.Context(), call); !errors.Is(err, signer.ErrStaleEpoch) {
		t.Fatalf("a call on the epoch before: %v", err)
	}
}

// A switch that is damaged is not imported; that of a store that is given up hinders
// nothing.
func TestImportOfADamagedSwitch(t *testing.T) {
	server := servers.StartRedis(t, servers.RedisOptions{})
	s := marked(t, onServer(server))
	damaged := []signer.Record{{Switch: &killswitch.State{Epoch: killswitch.MaxEpoch + 1}}}
	if err := s.Import(t.Context(), from(damaged, nil)); !errors.Is(err, killswitch.ErrDamaged) {
		t.Fatalf("an import gives %v", err)
	}
	server.Do("HSET", s.markerKey(globalSlot), "epoch", "4503599627370496")
	if err := s.ImportOver(t.Context(), testID, from(few(), nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if g := beat(t, s, "a"); g.Epoch != 7 {
		t.Fatalf("granted %+v", g)
	}
}
