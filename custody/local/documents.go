package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/custody"
)

const documentsDir = "documents"

// documentHead is the first line of a document's file.
type documentHead struct {
	Format    int    `json:"format"`
	MinReader int    `json:"minReader"`
	Revision  uint64 `json:"revision"`
	SHA256    []byte `json:"sha256"` // of the bytes after the line
}

// Load implements [custody.Keyring].
func (k *Keyring) Load(ctx context.Context, name string) (custody.Document, error) {
	if err := k.usable(ctx); err != nil {
		return custody.Document{}, err
	}
	path, err := k.documentPath(name)
	if err != nil {
		return custody.Document{}, err
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return custody.Document{}, fmt.Errorf("%w: document %s", custody.ErrNotFound, name)
	}
	if err != nil {
		return custody.Document{}, unavailable(err)
	}
	line, data, _ := bytes.Cut(text, []byte("\n"))
	var head documentHead
	if err := json.Unmarshal(line, &head); err != nil {
		return custody.Document{}, unavailable(fmt.Errorf("%s is damaged: %w", path, err))
	}
	if head.MinReader > format {
		return custody.Document{}, unavailable(fmt.Errorf("%s was written by a newer version (format %d, this one reads %d)", path, head.MinReader, format))
	}
	if sum := sha256.Sum256(data); !bytes.Equal(sum[:], head.SHA256) || head.Revision == 0 {
		return custody.Document{}, unavailable(fmt.Errorf("%s is damaged: its checksum is another; restore it from a backup", path))
	}
	return custody.Document{Revision: head.Revision, Data: data}, nil
}

// Swap implements [custody.Keyring].
func (k *Keyring) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	k.swapping.Lock()
	defer k.swapping.Unlock()
	current, err := k.Load(ctx, name)
	if err != nil && !errors.Is(err, custody.ErrNotFound) {
		return 0, err
	}
	if current.Revision != expect {
		return 0, fmt.Errorf("%w: %s is at revision %d, not %d", custody.ErrConflict, name, current.Revision, expect)
	}
	path, err := k.documentPath(name)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(data)
	line, err := json.Marshal(documentHead{Format: format, MinReader: format, Revision: expect + 1, SHA256: sum[:]})
	if err != nil {
		return 0, unavailable(err)
	}
	if err := writeFile(path, bytes.Join([][]byte{line, data}, []byte("\n"))); err != nil {
		return 0, unavailable(err)
	}
	return expect + 1, nil
}

func (k *Keyring) documentPath(name string) (string, error) {
	base, err := fileName(name)
	if err != nil {
		return "", err
	}
	return filepath.Join(k.dir, documentsDir, base+".json"), nil
}
