package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime/debug"

	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged: the file is not what was written.
var ErrDamaged = errors.New("is damaged or truncated; restore it from its backup")

// A bolt file begins with two meta pages: a page header, then in the machine's
// byte order magic, version and page size (32 bits each), flags, the root, the
// freelist, the number of pages, the transaction and a checksum of all that.
const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	metaStart   = 16 // after the page's header
	metaEnd     = 80
	maxPageSize = 64 << 10
)

// meta is what a meta page says.
type meta struct {
	pageSize  int64
	pages, tx uint64
}

func parseMeta(page []byte) (meta, bool) {
	order, sum := binary.NativeEndian, fnv.New64a()
	_, _ = sum.Write(page[metaStart : metaEnd-8]) // never fails
	ok := order.Uint32(page[16:]) == metaMagic && order.Uint32(page[20:]) == metaVersion && order.Uint64(page[72:]) == sum.Sum64()
	return meta{int64(order.Uint32(page[24:])), order.Uint64(page[56:]), order.Uint64(page[64:])}, ok
}

// checkSize refuses a file that ends before its last page: it is mapped into
// memory, and to read past its end would kill the process.
func checkSize(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The second page's place depends on the size of the first.
	var newest meta
	page, found := make([]byte, metaEnd), false
	for at := int64(0); at <= maxPageSize; at = max(2*at, 1024) {
		if _, err := f.ReadAt(page, at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if m, ok := parseMeta(page); ok && (at == 0 || at == m.pageSize) && (!found || m.tx > newest.tx) {
			newest, found = m, true
		}
	}
	info, err := f.Stat()
	switch {
	case err != nil || info.Size() == 0:
		return err
	case !found:
		return fmt.Errorf("%w: it does not begin as a store does", ErrDamaged)
	case uint64(info.Size()/newest.pageSize) < newest.pages:
		return fmt.Errorf("%w: it has %d bytes and had %d pages of %d", ErrDamaged, info.Size(), newest.pages, newest.pageSize)
	}
	return nil
}

// guarded runs what first reads a file: a fault in its mapped memory, or what bolt
// panics about, is ErrDamaged.
func guarded(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	err = read()
	for _, e := range []error{bolterrors.ErrInvalid, bolterrors.ErrVersionMismatch, bolterrors.ErrChecksum} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return err
}
