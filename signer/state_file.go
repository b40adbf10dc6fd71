package signer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
)

// A state file is a store's content as lines of JSON:
//
//	{"kind":"pact-signer-state","format":1,"minReader":1,"store":…,"exportedAt":…}
//	{"device":{…}}            one record a line, of any kind, in any order but for
//	{"audit":{…}}             the audit log, which is whole and begins with entry 1
//	{"records":N,"sha256":…}  over every byte before this line
//
// The digest tells a whole file from a damaged one. It keeps nobody from writing
// another file: only administrators import.
const (
	stateKind      = "pact-signer-state"
	stateFormat    = 1
	stateMinReader = 1

	// stateMaxLine is far above every record, and stateSwitchPart keeps the switch
	// below it: as many entries, or resumes, go in one line.
	stateMaxLine    = 16 << 20
	stateSwitchPart = 1000
)

type stateHeader struct {
	Kind       string    `json:"kind"`
	Format     int       `json:"format"`
	MinReader  int       `json:"minReader"`
	Store      string    `json:"store"`
	ExportedAt time.Time `json:"exportedAt"`
}

// stateLine is every line after the first: a record, or the trailer.
type stateLine struct {
	Record
	Records *uint64 `json:"records,omitzero"`
	SHA256  string  `json:"sha256,omitzero"`
}

// StateSummary is what a state file says of itself and what is in it.
type StateSummary struct {
	Store      string    // the id of the store that it was exported from
	ExportedAt time.Time // by the exporting replica's clock
	Records    uint64
	SHA256     string   // hexadecimal, of the file without its last line
	Issuers    []string // of all records, sorted

	Devices, Credentials, EnrollmentTokens, Audiences, AuditEntries uint64
	// Kills are entries of the kill switch, lifted ones included.
	Kills uint64
	// AuditHead is the newest entry of the audit log.
	AuditHead audit.Head

	of map[string]uint64 // records by issuer, copies of key schedules not counted
}

// Of is how many records are those issuers'.
func (s StateSummary) Of(issuers []string) (records uint64) {
	for _, issuer := range issuers {
		records += s.of[issuer]
	}
	return records
}

// add counts a record. It refuses what is not exactly one.
func (s *StateSummary) add(r Record) error {
	n := 0
	count := func(issuer string, counter *uint64) {
		n++
		*counter++
		if r.Schedule == nil {
			if s.of == nil {
				s.of = map[string]uint64{}
			}
			s.of[issuer]++
		}
		if at, found := slices.BinarySearch(s.Issuers, issuer); !found {
			s.Issuers = slices.Insert(s.Issuers, at, issuer)
		}
	}
	if r.Device != nil {
		count(r.Device.Issuer, &s.Devices)
	}
	if r.Credential != nil {
		count(r.Credential.Issuer, &s.Credentials)
	}
	if r.EnrollmentToken != nil {
		count(r.EnrollmentToken.Issuer, &s.EnrollmentTokens)
	}
	if r.Audience != nil {
		count(r.Audience.Issuer, &s.Audiences)
	}
	if r.Schedule != nil {
		count(r.Schedule.Issuer, new(uint64))
	}
	if r.Switch != nil {
		n++
		s.Kills += uint64(len(r.Switch.Entries))
	}
	if r.Audit != nil {
		n++
		s.AuditEntries++
		s.AuditHead = audit.Head{Seq: r.Audit.Seq, Hash: r.Audit.Hash}
	}
	if n != 1 {
		return fmt.Errorf("holds %d records in one", n)
	}
	s.Records++
	return nil
}

// WriteState writes everything that a store holds as a state file. The store's id
// and the time go into its first line.
func WriteState(ctx context.Context, w io.Writer, storeID string, at time.Time, s StateStore) (StateSummary, error) {
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	summary := StateSummary{Store: storeID, ExportedAt: at.UTC()}
	err := writeStateLine(out, stateHeader{stateKind, stateFormat, stateMinReader, storeID, summary.ExportedAt})
	if err != nil {
		return summary, err
	}
	write := func(r Record) error {
		if err := summary.add(r); err != nil {
			return fmt.Errorf("a record of the store %w", err)
		}
		return writeStateLine(out, stateLine{Record: r})
	}
	err = s.Export(ctx, func(r Record) error {
		if r.Switch == nil {
			return write(r)
		}
		for _, part := range switchParts(*r.Switch) {
			if err := write(Record{Switch: &part}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return summary, err
	}
	if err := out.Flush(); err != nil { // before the digest is taken
		return summary, fmt.Errorf("write the state file: %w", err)
	}
	summary.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err := writeStateLine(out, stateLine{Records: &summary.Records, SHA256: summary.SHA256}); err != nil {
		return summary, err
	}
	if err := out.Flush(); err != nil {
		return summary, fmt.Errorf("write the state file: %w", err)
	}
	return summary, nil
}

func writeStateLine(w io.Writer, v any) error {
	line, err := json.Marshal(v, json.Deterministic(true), json.FormatNilSliceAsNull(true))
	if err != nil {
		return fmt.Errorf("encode a record of the store: %w", err)
	}
	if len(line) >= stateMaxLine {
		return fmt.Errorf("a record of the store has %d bytes: a state file's lines have at most %d", len(line), stateMaxLine)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return nil
}

// switchParts cuts a switch into lines of bearable length. Merged they are what it
// was.
func switchParts(s killswitch.State) []killswitch.State {
	if len(s.Entries) <= stateSwitchPart && len(s.Resumes) <= stateSwitchPart {
		return []killswitch.State{s}
	}
	var parts []killswitch.State
	for entries := range slices.Chunk(s.Entries, stateSwitchPart) {
		parts = append(parts, killswitch.State{Epoch: s.Epoch, Entries: entries})
	}
	for resumes := range slices.Chunk(s.Resumes, stateSwitchPart) {
		parts = append(parts, killswitch.State{Epoch: s.Epoch, Resumes: resumes})
	}
	return parts
}

// StateFileError says what is wrong with a state file.
type StateFileError struct {
	// Reason is one of StateFileKind, StateFileFormat, StateFileTruncated and
	// StateFileDamaged.
	Reason string
	// Line is where, from 1.
	Line uint64
	// Problem says what is wrong. It quotes nothing of the file.
	Problem string
}

func (e *StateFileError) Error() string {
	return fmt.Sprintf("state file, line %d: %s", e.Line, e.Problem)
}

// The reasons of a StateFileError.
const (
	StateFileKind      = "NOT_A_STATE_FILE"
	StateFileFormat    = "FILE_FORMAT"    // written by a newer version
	StateFileTruncated = "FILE_TRUNCATED" // its end is missing
	StateFileDamaged   = "FILE_DAMAGED"   // it is not as it was written
)

// stateReader reads a state file once, and knows only at its end whether it is
// whole.
type stateReader struct {
	in      *bufio.Reader
	sum     hash.Hash
	line    uint64
	long    []byte // a line that the buffer did not hold
	log     audit.Verifier
	summary StateSummary
}

func newStateReader(r io.Reader) (*stateReader, error) {
	s := &stateReader{in: bufio.NewReaderSize(r, 64<<10), sum: sha256.New()}
	line, err := s.readLine()
	if err != nil {
		return nil, err
	}
	var h stateHeader
	// Of another version only what every version has is read.
	if err := json.Unmarshal(line, &h); err != nil || h.Kind != stateKind {
		return nil, s.refuse(StateFileKind, "this is no state file: it does not begin as pactctl state export writes it")
	}
	if h.Format != stateFormat || h.MinReader > stateFormat {
		return nil, s.refuse(StateFileFormat, "it has format %d, for readers of %d on, and this version knows %d: use the version that exported it, or a newer one", h.Format, h.MinReader, stateFormat)
	}
	if err := json.Unmarshal(line, &h, json.RejectUnknownMembers(true)); err != nil {
		return nil, s.refuse(StateFileDamaged, "its first line holds something unknown")
	}
	s.sum.Write(line)
	s.summary.Store, s.summary.ExportedAt = h.Store, h.ExportedAt
	return s, nil
}

func (s *stateReader) refuse(reason, format string, args ...any) error {
	return &StateFileError{Reason: reason, Line: max(s.line, 1), Problem: fmt.Sprintf(format, args...)}
}

// readLine returns the next line with its end, valid until the next call.
func (s *stateReader) readLine() ([]byte, error) {
	s.long = s.long[:0]
	for {
		part, err := s.in.ReadSlice('\n')
		if err == nil && len(s.long) == 0 {
			s.line++
			return part, nil
		}
		s.long = append(s.long, part...)
		switch {
		case len(s.long) > stateMaxLine:
			s.line++
			return nil, s.refuse(StateFileDamaged, "the line is longer than %d bytes", stateMaxLine)
		case err == nil:
			s.line++
			return s.long, nil
		case errors.Is(err, io.EOF):
			s.line++
			if s.line == 1 {
				return nil, s.refuse(StateFileKind, "this is no state file: its first line does not end")
			}
			return nil, s.refuse(StateFileTruncated, "the file ends here, before its last line: it was cut off. Export or copy it again")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read the state file: %w", err)
		}
	}
}

// next returns the next record, and io.EOF if all that came before is as it was
// written.
func (s *stateReader) next() (Record, error) {
	line, err := s.readLine()
	if err != nil {
		return Record{}, err
	}
	var l stateLine
	if err := json.Unmarshal(line, &l, json.RejectUnknownMembers(true)); err != nil {
		return Record{}, s.refuse(StateFileDamaged, "the line is not a record as this version knows it: the file was changed. Export it again")
	}
	if l.Records != nil || l.SHA256 != "" {
		return Record{}, s.end(l)
	}
	s.sum.Write(line)
	if err := s.summary.add(l.Record); err != nil {
		return Record{}, s.refuse(StateFileDamaged, "the line %v", err)
	}
	if l.Audit != nil {
		if err := s.log.Add(*l.Audit); err != nil {
			return Record{}, s.refuse(StateFileDamaged, "%v", err)
		}
	}
	return l.Record, nil
}

// end checks the last line.
func (s *stateReader) end(l stateLine) error {
	s.summary.SHA256 = hex.EncodeToString(s.sum.Sum(nil))
	switch {
	case l.Record != Record{} || l.Records == nil:
		return s.refuse(StateFileDamaged, "the line is neither a record nor the last line")
	case *l.Records != s.summary.Records:
		return s.refuse(StateFileDamaged, "the file has %d records and says that it has %d: it was changed, or a part is missing. Export or copy it again", s.summary.Records, *l.Records)
	case l.SHA256 != s.summary.SHA256:
		return s.refuse(StateFileDamaged, "the file's SHA-256 is not what it says: it was changed. Export or copy it again")
	}
	switch _, err := s.in.ReadByte(); {
	case err == nil:
		s.line++
		return s.refuse(StateFileDamaged, "there is something after the file's last line")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read the state file: %w", err)
	}
	return io.EOF
}

// CheckState reads a whole state file and says what is in it. *StateFileError if
// it is not whole.
func CheckState(r io.Reader) (StateSummary, error) {
	s, err := newStateReader(r)
	if err != nil {
		return StateSummary{}, err
	}
	for {
		if _, err := s.next(); errors.Is(err, io.EOF) {
			return s.summary, nil
		} else if err != nil {
			return StateSummary{}, err
		}
	}
}

// StateFile is a state file that was found to be whole. It is kept in a file that
// has no name any more where the system allows that, and is gone after Close.
type StateFile struct {
	// Summary is what is in the file.
	Summary StateSummary
	f       *os.File
}

// ReadState takes a whole state file in and checks it. *StateFileError if it is
// not one.
func ReadState(r io.Reader) (_ *StateFile, err error) {
	f, err := os.CreateTemp("", "pact-state-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("keep the state file until it is checked: %w", err)
	}
	_ = os.Remove(f.Name()) // open it stays readable; where it cannot be removed yet, Close does
	s := &StateFile{f: f}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	kept := bufio.NewWriterSize(f, 64<<10)
	if s.Summary, err = CheckState(io.TeeReader(r, kept)); err != nil {
		return nil, err
	}
	if err := kept.Flush(); err != nil {
		return nil, fmt.Errorf("keep the state file until it is checked: %w", err)
	}
	return s, nil
}

// Close forgets the file.
func (s *StateFile) Close() error {
	err := s.f.Close()
	if rm := os.Remove(s.f.Name()); rm != nil && !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// reader reads the file from its beginning.
func (s *StateFile) reader() (*stateReader, error) {
	if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the state file: %w", err)
	}
	return newStateReader(s.f)
}

// Holds says whether the file's audit log has that entry. The zero head names no
// entry, and every file holds it.
func (s *StateFile) Holds(head audit.Head) (bool, error) {
	if head == (audit.Head{}) || head == s.Summary.AuditHead {
		return true, nil
	}
	if head.Seq > s.Summary.AuditHead.Seq {
		return false, nil
	}
	r, err := s.reader()
	if err != nil {
		return false, err
	}
	for {
		switch rec, err := r.next(); {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case rec.Audit != nil && rec.Audit.Seq == head.Seq:
			return rec.Audit.Hash == head.Hash, nil
		}
	}
}

// ImportCheck is what a deployment knows before it takes a file in.
type ImportCheck struct {
	// Issuers are the deployment's, and Retired those that it had.
	Issuers, Retired []string
	// Store is the id that custody knows, empty if there was never a store, and Head
	// the audit entry that custody recorded of it.
	Store string
	Head  audit.Head
	// Accept: the operator gave up that store by its name.
	Accept bool
}

// Check says whether the file may be imported, and whether enrolment closes: it
// does when acts that custody recorded, invalidations among them, are not in the
// file, and when the file is another store's, of which custody recorded nothing that
// could tell whether it is the newest. *StateError with StateOtherFile or
// StateFileBehind.
func (s *StateFile) Check(c ImportCheck) (closes bool, err error) {
	for _, issuer := range s.Summary.Issuers {
		if !slices.Contains(c.Issuers, issuer) && !slices.Contains(c.Retired, issuer) {
			return false, &StateError{StateOtherFile, fmt.Sprintf(
				"the file has records of issuer %s, which this deployment does not serve: it is another deployment's file, or the issuer is missing in this one's configuration; if it is gone for good, retire it (signer retire-issuer; if this deployment's record never had it, put it into issuers for one signer init first), and its records are left out", adminShorten(issuer, 128))}
		}
	}
	if c.Store == "" {
		return false, nil
	}
	whole, err := s.Holds(c.Head)
	switch {
	case err != nil:
		return false, err
	case c.Accept:
		return !whole || s.Summary.Store != c.Store, nil
	case s.Summary.Store != c.Store:
		return false, &StateError{StateOtherFile, fmt.Sprintf(
			"the file was exported from store %s, and custody knows store %s: if its records shall take the place of that store's, give that one up by its name (pactctl state import --accept-loss %s)", adminShorten(s.Summary.Store, 64), c.Store, c.Store)}
	case !whole:
		return false, &StateError{StateFileBehind, fmt.Sprintf(
			"the file's audit log does not have entry %d as custody recorded it (its newest is %d), so invalidations, revocations and audiences are missing: import a newer export. If there is none, give those up by the store's name (pactctl state import --accept-loss %s), which closes enrolment", c.Head.Seq, s.Summary.AuditHead.Seq, c.Store)}
	}
	return false, nil
}

// Records returns the file's records for StateStore.Import, from the first one, and
// after the last one the act's entry as the end of the audit log. One call at a
// time. The copies of the key schedules are left out: they are custody's to renew,
// and might be those of other keys. So are the records of issuers that are retired;
// what the audit log and the kill switch say of them stays.
func (s *StateFile) Records(act audit.Entry, retired []string) func() (Record, error) {
	var (
		r     *stateReader
		ended bool
	)
	return func() (Record, error) {
		if ended {
			return Record{}, io.EOF
		}
		if r == nil {
			var err error
			if r, err = s.reader(); err != nil {
				return Record{}, err
			}
		}
		for {
			rec, err := r.next()
			switch {
			case errors.Is(err, io.EOF):
				ended = true
				head := s.Summary.AuditHead
				act = audit.Chain(head.Seq, head.Hash, act)
				return Record{Audit: &act}, nil
			case err != nil:
				return Record{}, err
			case rec.Schedule != nil || slices.Contains(retired, rec.issuer()):
				continue
			}
			return rec, nil
		}
	}
}
