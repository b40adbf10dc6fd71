// Package bolt keeps everything that an embedded signer remembers in one file:
// the signer's records, the kill switch, the key schedule's mirror and the
// audit log. One process at a time uses the file.
//
// What a method returned nil for is on disk. Calls that write for every request
// share their transactions, see writer.go; credential calls write nothing. Two
// things live in memory only: callers' rate limits, which a restart refills, and
// the replicas' heartbeats, which a restart ends together with the replica.
package bolt

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/rotation"
	"github.com/pactsigner/pactsigner/signer"
)

var (
	_ signer.Store     = (*Store)(nil)
	_ killswitch.Store = (*Store)(nil)
	_ rotation.Mirror  = (*Store)(nil)
	_ rotation.Fleet   = (*Store)(nil)
)

// format is the file's format that this version writes, and the only one that
// it reads; minReader is the oldest format whose readers understand it.
const (
	format    = 1
	minReader = 1
)

// Options are the store's settings; the zero value is the product's.
type Options struct {
	// ID is the name that the file must have; empty takes any. Make gives it to a
	// file that has none, and makes one that is not there; without Make these are
	// ErrUnmarked.
	ID   string
	Make bool
	// Now is the store's clock; nil is time.Now.
	Now func() time.Time
	// Lock is how long Open waits for another process to let go of the file; 0
	// is one second.
	Lock time.Duration
	// Queue is how many calls may wait to be written, above which they fail with
	// ErrBusy, and Batch how many of them share a transaction; 0 is 1,024 and 256.
	Queue, Batch int
	// Replay is how long a jti is kept from its first use; 0 is 240 s. It
	// belongs to the lifetime of assertions and is not scaled.
	Replay time.Duration
	// Registered is how long after its last beat a replica counts; 0 is the
	// kill switch's default.
	Registered time.Duration
	// NeverSigned is how long a device is kept that has not signed since it
	// enrolled; 0 is 30 days.
	NeverSigned time.Duration
}

func (o Options) orDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, f := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.Lock, time.Second},
		{&o.Replay, 240 * time.Second},
		{&o.Registered, killswitch.Defaults().Registered},
		{&o.NeverSigned, 30 * 24 * time.Hour},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if o.Queue == 0 {
		o.Queue = 1024
	}
	if o.Batch == 0 {
		o.Batch = 256
	}
	return o
}

// The file's buckets. Keys of records are key(issuer, id).
var (
	metaBucket        = []byte("meta")         // format, id, epoch, change, audit head
	devicesBucket     = []byte("devices")      // by thumbprint: see devices.go
	signedBucket      = []byte("signed")       // by thumbprint: LastSignedAt
	unsignedBucket    = []byte("unsigned")     // enrolment time and device key: who may never have signed
	credentialsBucket = []byte("credentials")  // by id
	hashesBucket      = []byte("hashes")       // by credential hash: what Authorize needs
	namesBucket       = []byte("names")        // by credential name: the id that has it
	tokensBucket      = []byte("tokens")       // enrolment tokens by id
	tokenHashesBucket = []byte("token-hashes") // by token hash: id
	audiencesBucket   = []byte("audiences")    // by origin
	countsBucket      = []byte("counts")       // devices and credentials that are in force
	jtisBucket        = []byte("jtis")         // by time: see jti.go
	auditBucket       = []byte("audit")        // by number
	entriesBucket     = []byte("kills")        // see switch.go
	resumesBucket     = []byte("resumes")
	schedulesBucket   = []byte("schedules") // by issuer: see mirror.go

	allBuckets = [][]byte{
		metaBucket, devicesBucket, signedBucket, unsignedBucket, credentialsBucket, hashesBucket, namesBucket,
		tokensBucket, tokenHashesBucket, audiencesBucket, countsBucket, jtisBucket, auditBucket, entriesBucket,
		resumesBucket, schedulesBucket,
	}
)

var (
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("another signer uses it")
	// ErrFormat: the file was written by a version that this one does not know.
	ErrFormat = errors.New("unknown store format")
	// ErrUnmarked: the file is not there, or has no name: it is not the one asked for.
	ErrUnmarked = errors.New("is empty or bears no mark of its deployment")
	// ErrForeign: the file has another name than the one asked for.
	ErrForeign = errors.New("belongs to another deployment, or is from before its loss was accepted")
	// ErrBusy: too many calls wait to be written. Answer 503.
	ErrBusy = errors.New("store: too many calls are waiting")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store: closed")
)

// Store is an open file. Safe for concurrent use.
type Store struct {
	db     *bbolt.DB
	opts   Options
	opened time.Time // by opts.Now, when the file was opened
	writer *writer
	seen   *seen // touched by the writer alone
	limits *limiter
	fleet  fleet

	registries atomic.Uint64 // see AudiencesRevision

	mu      sync.Mutex
	changed chan struct{}
}

// Open opens the store at path, or makes one there that only its owner can
// read. ErrInUse, ErrFormat, ErrDamaged, ErrUnmarked, ErrForeign.
func Open(path string, opts Options) (*Store, error) {
	opts = opts.orDefaults()
	made, err := prepare(path)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if made && opts.ID != "" && !opts.Make {
		return nil, fmt.Errorf("store %s: %w", path, ErrUnmarked)
	}
	var db *bbolt.DB
	err = guarded(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:         opts.Lock,
			NoFreelistSync:  true, // read from the pages on start; commits stay small
			FreelistType:    bbolt.FreelistMapType,
			InitialMmapSize: 1 << 30, // address space: readers do not hold up a growing file
			NoStatistics:    true,
		})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("store %s: %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	s := &Store{
		db: db, opts: opts, opened: opts.Now(),
		fleet:   fleet{replicas: make(map[string]killswitch.Replica)},
		changed: make(chan struct{}),
	}
	s.limits = newLimiter(s.elapsed)
	if err := guarded(s.init); err != nil {
		if !errors.Is(err, ErrDamaged) { // then a lock may be held for good
			db.Close()
		}
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if made {
		if err := syncDir(filepath.Dir(path)); err != nil {
			db.Close()
			return nil, fmt.Errorf("store %s: %w", path, err)
		}
	}
	s.writer = newWriter(s)
	return s, nil
}

// prepare refuses a file that others can read, and says whether there is none.
func prepare(path string) (made bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return false, errors.New("is not a regular file")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return false, fmt.Errorf("mode is %04o, others can use it: chmod 600 it", mode)
	}
	return info.Size() == 0, checkSize(path)
}

// syncDir makes a new file's name durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// marker says what a file is.
type marker struct {
	Format    int `json:"format"`
	MinReader int `json:"minReader"`
}

var (
	formatKey = []byte("format")
	idKey     = []byte("id")
)

// init checks the marker, or writes it into an empty file, and reads what is
// kept in memory.
func (s *Store) init() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			if name, _ := tx.Cursor().First(); name != nil {
				return fmt.Errorf("%w: it holds something else", ErrFormat)
			}
			if s.opts.ID != "" && !s.opts.Make {
				return ErrUnmarked
			}
			for _, name := range allBuckets {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			meta = tx.Bucket(metaBucket)
			if err := putJSON(meta, formatKey, marker{format, minReader}); err != nil {
				return err
			}
		}
		var m marker
		if found, err := getJSON(meta, formatKey, &m); err != nil {
			return err
		} else if !found || m.Format != format {
			return fmt.Errorf("%w: it has format %d, for readers of %d on; this version knows %d: use a newer version", ErrFormat, m.Format, m.MinReader, format)
		}
		switch id := string(meta.Get(idKey)); {
		case s.opts.ID == "" || id == s.opts.ID:
		case id != "":
			return ErrForeign
		case !s.opts.Make:
			return ErrUnmarked
		default:
			if err := meta.Put(idKey, []byte(s.opts.ID)); err != nil {
				return err
			}
		}
		var err error
		s.seen, err = loadSeen(tx, s.opened, s.opts.Replay)
		return err
	})
}

// Close finishes what is being written and lets go of the file. Calls that wait
// fail with ErrClosed.
func (s *Store) Close() error {
	s.writer.stop()
	return s.db.Close()
}

// Now returns the store's clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return s.now(), ctx.Err()
}

func (s *Store) now() time.Time { return s.opts.Now().UTC() }

// elapsed is the time since the file was opened. It takes the monotonic clock
// where opts.Now has one.
func (s *Store) elapsed() time.Duration { return s.opts.Now().Sub(s.opened) }

// view reads one snapshot.
func (s *Store) view(ctx context.Context, read func(tx *bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return closed(s.db.View(read))
}

// update runs one act in a transaction of its own; an error undoes all of it.
func (s *Store) update(ctx context.Context, act func(tx *bbolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return closed(s.db.Update(act))
}

func closed(err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return ErrClosed
	}
	return err
}

// notify tells everybody who waits on Changed.
func (s *Store) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed is closed when the switch or a schedule changes.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// key is the key of a record of an issuer. Issuers are URLs: they hold no NUL.
func key(issuer, id string) []byte {
	k := make([]byte, 0, len(issuer)+1+len(id))
	k = append(k, issuer...)
	k = append(k, 0)
	return append(k, id...)
}

// idOf is the id in a key of that issuer.
func idOf(issuer string, k []byte) string { return string(k[len(issuer)+1:]) }

func putJSON(b *bbolt.Bucket, k []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	return b.Put(k, data)
}

func getJSON(b *bbolt.Bucket, k []byte, v any) (found bool, err error) {
	data := b.Get(k)
	if data == nil {
		return false, nil
	}
	if err := json.Unmarshal(data, v); err != nil {
		return true, fmt.Errorf("store: a damaged record: %w", err)
	}
	return true, nil
}

func getUint(b *bbolt.Bucket, k []byte) uint64 {
	if v := b.Get(k); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func putUint(b *bbolt.Bucket, k []byte, n uint64) error {
	return b.Put(k, binary.BigEndian.AppendUint64(nil, n))
}

// page calls add with the records of an issuer that p asks for, and returns the
// key of the next page, "" if there is none.
func page(b *bbolt.Bucket, issuer string, p signer.Page, add func(k, v []byte) error) (string, error) {
	size := p.Size
	if size <= 0 {
		size = 100
	}
	size = min(size, 1000)
	prefix := key(issuer, "")
	c := b.Cursor()
	k, v := c.Seek(key(issuer, p.After))
	if p.After != "" && string(k) == string(key(issuer, p.After)) {
		k, v = c.Next()
	}
	last := ""
	for ; hasPrefix(k, prefix); k, v = c.Next() {
		if size == 0 {
			return last, nil
		}
		if err := add(k, v); err != nil {
			return "", err
		}
		last = idOf(issuer, k)
		size--
	}
	return "", nil
}

func hasPrefix(k, prefix []byte) bool {
	return len(k) >= len(prefix) && string(k[:len(prefix)]) == string(prefix)
}
