package signer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// memoryState is a store of records in memory.
type memoryState []signer.Record

func (m *memoryState) Export(_ context.Context, yield func(signer.Record) error) error {
	for _, r := range *m {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

func (m *memoryState) Import(_ context.Context, next func() (signer.Record, error)) error {
	var list []signer.Record
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			*m = list
			return nil
		}
		if err != nil {
			return err
		}
		list = append(list, r)
	}
}

var stateTime = time.Date(2026, 3, 14, 15, 9, 26, 5e8, time.UTC)

// auditLog is a chain of so many entries.
func auditLog(n int) []signer.Record {
	var list []signer.Record
	var last audit.Entry
	for i := range n {
		last = audit.Chain(last.Seq, last.Hash, audit.Entry{
			Time: stateTime, Actor: "ops", Action: "kill", Reason: fmt.Sprint("drill <&> ", i), Detail: map[string]string{"b": "2", "a": "1"},
		})
		e := last
		list = append(list, signer.Record{Audit: &e})
	}
	return list
}

// sampleState is a store with a record of each kind.
func sampleState() memoryState {
	return append(memoryState{
		{Device: &signer.Device{Issuer: issuerA, Thumbprint: thumbprint, Subject: "pa_x", Point: bytes.Repeat([]byte{7}, 64), EnrolledAt: stateTime}},
		{Device: &signer.Device{Issuer: issuerB, Thumbprint: thumbprint, InvalidatedAt: stateTime, Reason: "lost"}},
		{Credential: &signer.Credential{Issuer: issuerA, ID: "c1", Name: "ci", Principal: "p", Subject: "pa_y", Hash: sha256.Sum256([]byte("x")), CreatedAt: stateTime}},
		{EnrollmentToken: &signer.EnrollmentToken{Issuer: issuerA, ID: "t1", Hash: sha256.Sum256([]byte("y")), ExpiresAt: stateTime}},
		{Audience: &signer.Audience{Issuer: issuerA, Origin: "https://p.example.com", Audience: "pact:p", SetAt: stateTime, SetBy: "ops"}},
		{Switch: &killswitch.State{Epoch: 9, Entries: []killswitch.Entry{{ID: "k", Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "drill", Actor: "ops", Time: stateTime, Epoch: 8}}, Resumes: []killswitch.Resume{}}},
		{Schedule: &signer.MirroredSchedule{Issuer: issuerA, Revision: 41, Document: []byte(`{"keys":[]}`)}},
	}, auditLog(3)...)
}

func stateFile(t testing.TB, s memoryState) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := signer.WriteState(context.Background(), &b, "store-1", stateTime, &s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func recordsJSON(t testing.TB, s memoryState) string {
	t.Helper()
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sealed is a file of these lines, with the last line that goes with them.
func sealed(lines ...string) []byte {
	body := strings.Join(lines, "\n") + "\n"
	sum := sha256.Sum256([]byte(body))
	return fmt.Appendf(nil, "%s{\"records\":%d,\"sha256\":\"%s\"}\n", body, len(lines)-1, hex.EncodeToString(sum[:]))
}

// What is written is read again as it was, but for the schedules, and ends with the
// entry of the import.
func TestStateFile(t *testing.T) {
	store := sampleState()
	var file bytes.Buffer
	wrote, err := signer.WriteState(ctx, &file, "store-1", stateTime, &store)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]io.Reader{
		"at once": bytes.NewReader(file.Bytes()), "byte by byte": iotest.OneByteReader(bytes.NewReader(file.Bytes())),
	} {
		f, err := signer.ReadState(r)
		if err != nil {
			t.Fatal(name, err)
		}
		defer f.Close()
		if !reflect.DeepEqual(f.Summary, wrote) {
			t.Errorf("%s: read %+v, wrote %+v", name, f.Summary, wrote)
		}
		for range 2 { // as often as is needed
			var back memoryState
			if err := back.Import(ctx, f.Records(audit.Entry{Time: stateTime, Actor: "ops", Action: "state.import"}, nil)); err != nil {
				t.Fatal(name, err)
			}
			last := back[len(back)-1].Audit
			var v audit.Verifier
			for _, r := range back {
				if r.Audit != nil {
					if err := v.Add(*r.Audit); err != nil {
						t.Error(name, err)
					}
				}
			}
			if last == nil || last.Seq != 4 || last.Action != "state.import" {
				t.Errorf("%s: the last record is %+v", name, last)
			}
			want := slices.DeleteFunc(slices.Clone(store), func(r signer.Record) bool { return r.Schedule != nil })
			if got, want := recordsJSON(t, back[:len(back)-1]), recordsJSON(t, want); got != want {
				t.Errorf("%s: read %s\nwant %s", name, got, want)
			}
		}
	}
	s := wrote
	if s.Store != "store-1" || s.Records != 10 || s.Devices != 2 || s.Credentials != 1 || s.EnrollmentTokens != 1 || s.Audiences != 1 ||
		s.Kills != 1 || s.AuditEntries != 3 || s.AuditHead.Seq != 3 || !slices.Equal(s.Issuers, []string{issuerA, issuerB}) {
		t.Errorf("summary: %+v", s)
	}
	if lines := strings.SplitAfter(file.String(), "\n"); len(lines) != 13 || !strings.HasPrefix(lines[0], `{"kind":"pact-signer-state","format":1,`) {
		t.Errorf("the file is\n%s", file.String())
	}
}

// Every byte counts: a file that is cut anywhere, or in which one bit is another,
// is refused.
func TestStateFileDamage(t *testing.T) {
	file := stateFile(t, sampleState())
	var refused *signer.StateFileError
	for n := range file {
		if _, err := signer.CheckState(bytes.NewReader(file[:n])); !errors.As(err, &refused) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
		other := bytes.Clone(file)
		other[n] ^= 1 << (n % 8)
		if _, err := signer.CheckState(bytes.NewReader(other)); !errors.As(err, &refused) {
			t.Fatalf("byte %d is %q instead of %q: %v", n, other[n], file[n], err)
		}
	}
}

// What is whole as a file and still not what a store wrote.
func TestStateFileRefusals(t *testing.T) {
	good := strings.Split(strings.TrimSpace(string(stateFile(t, sampleState()))), "\n")
	head, records := good[0], good[1:len(good)-1]
	all := func(change func(l []string) []string) []byte {
		return sealed(append([]string{head}, change(slices.Clone(records))...)...)
	}
	if _, err := signer.CheckState(bytes.NewReader(all(func(l []string) []string { return l }))); err != nil {
		t.Fatal(err)
	}
	const secret = "hunter2"
	for name, c := range map[string]struct {
		file   []byte
		reason string
	}{
		"empty":             {nil, signer.StateFileKind},
		"something else":    {[]byte("PK\x03\x04" + secret), signer.StateFileKind},
		"an audit export":   {[]byte(`{"entries":[]}` + "\n"), signer.StateFileKind},
		"another kind":      {sealed(strings.Replace(head, "pact-signer-state", "pact-agent-state", 1)), signer.StateFileKind},
		"a newer format":    {sealed(strings.Replace(head, `"format":1`, `"format":2,"more":{}`, 1)), signer.StateFileFormat},
		"a newer reader":    {sealed(strings.Replace(head, `"minReader":1`, `"minReader":2`, 1)), signer.StateFileFormat},
		"no format":         {sealed(strings.Replace(head, `"format":1,`, "", 1)), signer.StateFileFormat},
		"more in its head":  {sealed(strings.Replace(head, `"format"`, `"more":1,"format"`, 1)), signer.StateFileDamaged},
		"no last line":      {[]byte(strings.Join(good[:len(good)-1], "\n") + "\n"), signer.StateFileTruncated},
		"a line is missing": {[]byte(strings.Join(slices.Delete(slices.Clone(good), 2, 3), "\n") + "\n"), signer.StateFileDamaged},
		"a line twice":      {[]byte(strings.Join(slices.Insert(slices.Clone(good), 2, good[2]), "\n") + "\n"), signer.StateFileDamaged},
		"lines swapped":     {[]byte(strings.Join(append([]string{good[0], good[2], good[1]}, good[3:]...), "\n") + "\n"), signer.StateFileDamaged},
		"more after it":     {append(all(func(l []string) []string { return l }), "x"...), signer.StateFileDamaged},
		"an unknown kind":   {all(func(l []string) []string { return append(l, `{"password":"`+secret+`"}`) }), signer.StateFileDamaged},
		"an unknown member": {all(func(l []string) []string { l[0] = strings.Replace(l[0], `"issuer"`, `"x":1,"issuer"`, 1); return l }), signer.StateFileDamaged},
		"another case":      {all(func(l []string) []string { l[0] = strings.Replace(l[0], `"issuer"`, `"Issuer"`, 1); return l }), signer.StateFileDamaged},
		"no record":         {all(func(l []string) []string { return append(l, `{}`) }), signer.StateFileDamaged},
		"two in one":        {all(func(l []string) []string { l[0] = l[0][:len(l[0])-1] + "," + l[4][1:]; return l }), signer.StateFileDamaged},
		"an empty line":     {all(func(l []string) []string { return append(l, "") }), signer.StateFileDamaged},
		"an entry missing":  {all(func(l []string) []string { return slices.Delete(l, 8, 9) }), signer.StateFileDamaged},
		"a log's beginning": {all(func(l []string) []string { return slices.Delete(l, 7, 8) }), signer.StateFileDamaged},
		"a log rewritten":   {all(func(l []string) []string { l[8] = strings.Replace(l[8], "drill", "quiet", 1); return l }), signer.StateFileDamaged},
		"a record at the end": {
			func() []byte {
				b := all(func(l []string) []string { return l })
				return bytes.Replace(b, []byte(`{"records"`), []byte(records[0][:len(records[0])-1]+`,"records"`), 1)
			}(), signer.StateFileDamaged,
		},
		"a line without end": {append([]byte(head+"\n"), bytes.Repeat([]byte("x"), 17<<20)...), signer.StateFileDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := signer.CheckState(bytes.NewReader(c.file))
			var refused *signer.StateFileError
			if !errors.As(err, &refused) || refused.Reason != c.reason {
				t.Errorf("got %v (%+v), want %s", err, refused, c.reason)
			}
			if strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("%v quotes the file", err)
			}
		})
	}
	broken := errors.New("the line is cut")
	if _, err := signer.CheckState(io.MultiReader(bytes.NewReader(all(func(l []string) []string { return l })[:500]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

// A kill switch with a long history goes in several lines, and is the same again.
func TestStateFileLongSwitch(t *testing.T) {
	s := killswitch.State{Epoch: 6000}
	for i := range 2500 {
		s.Entries = append(s.Entries, killswitch.Entry{ID: fmt.Sprint("k", i), Scope: killswitch.Scope{Kind: killswitch.All}, Reason: "drill", Actor: "ops", Time: stateTime, Epoch: uint64(i + 1)})
		s.Resumes = append(s.Resumes, killswitch.Resume{ID: fmt.Sprint("r", i), Entries: []string{fmt.Sprint("k", i)}, Reason: "over", Actor: "ops", Time: stateTime, Epoch: uint64(i + 2501)})
	}
	f, err := signer.ReadState(bytes.NewReader(stateFile(t, memoryState{{Switch: &s}})))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Summary.Kills != 2500 || f.Summary.Records != 6 {
		t.Errorf("summary: %+v", f.Summary)
	}
	var back memoryState
	if err := back.Import(ctx, f.Records(audit.Entry{Action: "state.import"}, nil)); err != nil {
		t.Fatal(err)
	}
	var got killswitch.State
	for _, r := range back {
		if r.Switch != nil {
			got = killswitch.Merge(got, *r.Switch)
		}
	}
	if !reflect.DeepEqual(got, killswitch.Merge(s, killswitch.State{})) {
		t.Error("the switch is another one")
	}
}

// A store that cannot be read to its end makes no file that passes for whole, and
// neither does one whose reader leaves.
func TestWriteStateFails(t *testing.T) {
	broken := errors.New("broken")
	for name, s := range map[string]signer.StateStore{
		"the store":     failingExport{broken},
		"two in one":    &memoryState{{Device: &signer.Device{}, Audience: &signer.Audience{}}},
		"a huge record": &memoryState{{Audience: &signer.Audience{Audience: strings.Repeat("x", 17<<20)}}},
	} {
		var b bytes.Buffer
		_, err := signer.WriteState(ctx, &b, "s", stateTime, s)
		if err == nil || name == "the store" && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := signer.CheckState(&b); err == nil {
			t.Errorf("%s: the file is whole", name)
		}
	}
	store := sampleState()
	if _, err := signer.WriteState(ctx, failingWriter{broken}, "s", stateTime, &store); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failingExport struct{ err error }

func (f failingExport) Export(_ context.Context, yield func(signer.Record) error) error {
	return errors.Join(yield(sampleState()[0]), f.err)
}
func (f failingExport) Import(context.Context, func() (signer.Record, error)) error { return f.err }

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

// The file is taken in where nobody else reads it, and is gone afterwards, whole or
// not.
func TestReadStateLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	left := func() int {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	file := stateFile(t, sampleState())
	f, err := signer.ReadState(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if n := left(); n != 0 {
		t.Errorf("while it is read it has %d names", n)
	}
	if err := f.Close(); err != nil || left() != 0 {
		t.Errorf("after it was closed: %v, %d files", err, left())
	}
	if _, err := signer.ReadState(bytes.NewReader(file[:len(file)-1])); err == nil || left() != 0 {
		t.Errorf("one that is cut: %v, %d files", err, left())
	}
	t.Setenv("TMPDIR", dir+"/none")
	if _, err := signer.ReadState(bytes.NewReader(file)); err == nil {
		t.Error("there was nowhere to keep it")
	}
}

// Which file a deployment takes, and when its enrolment closes.
func TestStateFileCheck(t *testing.T) {
	store := sampleState()
	f, err := signer.ReadState(bytes.NewReader(stateFile(t, store)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := func(n int) audit.Head {
		e := auditLog(n)[n-1].Audit
		return audit.Head{Seq: e.Seq, Hash: e.Hash}
	}
	forged := audit.Head{Seq: 2, Hash: head(1).Hash}
	both := []string{issuerA, issuerB}
	for name, c := range map[string]struct {
		signer.ImportCheck
		closes bool
		reason string
	}{
		"never a store":                     {signer.ImportCheck{Issuers: both}, false, ""},
		"its own store":                     {signer.ImportCheck{Issuers: both, Store: "store-1", Head: head(3)}, false, ""},
		"and an older head":                 {signer.ImportCheck{Issuers: both, Store: "store-1", Head: head(1)}, false, ""},
		"no head yet":                       {signer.ImportCheck{Issuers: both, Store: "store-1"}, false, ""},
		"more issuers":                      {signer.ImportCheck{Issuers: append(both, "https://c.example.com"), Store: "store-1"}, false, ""},
		"an issuer not served":              {signer.ImportCheck{Issuers: both[:1], Store: "store-1", Head: head(3)}, false, signer.StateOtherFile},
		"an issuer not served, accepted":    {signer.ImportCheck{Issuers: both[:1], Store: "store-1", Accept: true}, false, signer.StateOtherFile},
		"an issuer not served, no store":    {signer.ImportCheck{Issuers: both[:1]}, false, signer.StateOtherFile},
		"an issuer that is retired":         {signer.ImportCheck{Issuers: both[:1], Retired: both[1:], Store: "store-1", Head: head(3)}, false, ""},
		"another store's":                   {signer.ImportCheck{Issuers: both, Store: "store-2", Head: head(3)}, false, signer.StateOtherFile},
		"another store's, which is new":     {signer.ImportCheck{Issuers: both, Store: "store-2"}, false, signer.StateOtherFile},
		"that, accepted":                    {signer.ImportCheck{Issuers: both, Store: "store-2", Accept: true}, true, ""},
		"another store's with acts":         {signer.ImportCheck{Issuers: both, Store: "store-2", Head: head(4), Accept: true}, true, ""},
		"behind":                            {signer.ImportCheck{Issuers: both, Store: "store-1", Head: head(4)}, false, signer.StateFileBehind},
		"behind, accepted":                  {signer.ImportCheck{Issuers: both, Store: "store-1", Head: head(4), Accept: true}, true, ""},
		"another log":                       {signer.ImportCheck{Issuers: both, Store: "store-1", Head: forged}, false, signer.StateFileBehind},
		"another log, accepted":             {signer.ImportCheck{Issuers: both, Store: "store-1", Head: forged, Accept: true}, true, ""},
		"accepted, though nothing was lost": {signer.ImportCheck{Issuers: both, Store: "store-1", Head: head(3), Accept: true}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			closes, err := f.Check(c.ImportCheck)
			var refused *signer.StateError
			switch {
			case c.reason != "":
				if !errors.As(err, &refused) || refused.Reason != c.reason {
					t.Errorf("got %v, want %s", err, c.reason)
				}
			case err != nil || closes != c.closes:
				t.Errorf("got %v, %v, want %v", closes, err, c.closes)
			}
		})
	}
}

// What is left out of a retired issuer is all that is its own, and nothing of what is
// everybody's.
func TestRetiredIssuersRecords(t *testing.T) {
	store := append(sampleState(),
		signer.Record{EnrollmentToken: &signer.EnrollmentToken{Issuer: issuerB, ID: "t2", Hash: sha256.Sum256([]byte("z"))}},
		signer.Record{Credential: &signer.Credential{Issuer: issuerB, ID: "c2", Hash: sha256.Sum256([]byte("w"))}},
		signer.Record{Audience: &signer.Audience{Issuer: issuerB, Origin: "https://p.example.com", Audience: "pact:q"}},
		signer.Record{Schedule: &signer.MirroredSchedule{Issuer: issuerB, Revision: 2}})
	f, err := signer.ReadState(bytes.NewReader(stateFile(t, store)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if a, b := f.Summary.Of([]string{issuerA}), f.Summary.Of([]string{issuerB, "https://c.example.com"}); a != 4 || b != 4 {
		t.Errorf("%d and %d records are theirs", a, b)
	}
	var back memoryState
	if err := back.Import(ctx, f.Records(audit.Entry{Action: "state.import"}, []string{issuerB})); err != nil {
		t.Fatal(err)
	}
	var want memoryState
	for _, r := range sampleState() {
		if r.Schedule == nil && (r.Device == nil || r.Device.Issuer != issuerB) {
			want = append(want, r)
		}
	}
	if got, want := recordsJSON(t, back[:len(back)-1]), recordsJSON(t, want); got != want {
		t.Errorf("read %s\nwant %s", got, want)
	}
}

// Whatever is read: no panic, and what is accepted can be written again and is the
// same then.
func FuzzStateFile(f *testing.F) {
	file := stateFile(f, sampleState())
	f.Add(file)
	f.Add(file[:len(file)/2])
	lines := strings.Split(strings.TrimSpace(string(file)), "\n")
	f.Add(sealed(lines[0]))
	for _, l := range lines[1 : len(lines)-1] {
		f.Add(sealed(lines[0], l))
	}
	f.Add([]byte(lines[0] + "\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if body, ok := bytes.CutSuffix(data, []byte("\n")); ok && bytes.Count(body, []byte("\n")) < 20 {
			data = sealed(strings.Split(string(body), "\n")...) // else the digest would refuse nearly everything
		}
		file, err := signer.ReadState(bytes.NewReader(data))
		var refused *signer.StateFileError
		if err != nil {
			if !errors.As(err, &refused) {
				t.Fatalf("%v is no StateFileError", err)
			}
			return
		}
		defer file.Close()
		var store memoryState
		if err := store.Import(ctx, file.Records(audit.Entry{Action: "state.import"}, nil)); err != nil {
			t.Fatal(err)
		}
		again, err := signer.CheckState(bytes.NewReader(stateFile(t, store)))
		if err != nil {
			t.Fatal(err)
		}
		s := file.Summary
		if again.Devices != s.Devices || again.Credentials != s.Credentials || again.Kills != s.Kills || again.AuditEntries != s.AuditEntries+1 {
			a, _ := json.Marshal(s)
			b, _ := json.Marshal(again)
			t.Fatalf("%s became %s", a, b)
		}
	})
}
