package custodytest

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody"
)

// Memory is a keyring for tests that forgets everything with the process. It
// passes [Run]; several users may share one, as replicas share a Vault. The zero
// value is not usable; call [NewMemory].
type Memory struct {
	mu         sync.Mutex
	keys       map[string]*memoryKey
	documents  map[string]custody.Document
	subjectKey []byte
}

type memoryKey struct {
	signer   crypto.Signer
	alg      jose.SignatureAlgorithm
	disabled bool
}

var _ custody.Keyring = (*Memory)(nil)

// NewMemory makes an empty keyring.
func NewMemory() *Memory {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &Memory{keys: map[string]*memoryKey{}, documents: map[string]custody.Document{}, subjectKey: key}
}

// Keys lists the names of all keys, in order.
func (m *Memory) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.keys {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Create implements [custody.Keyring].
func (m *Memory) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	if err := usable(ctx, name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.keys[name]; ok {
		if k.alg != alg {
			return nil, custody.ErrMismatch
		}
		if k.disabled {
			return nil, custody.ErrDisabled
		}
		return k.signer.Public(), nil
	}
	signer, err := custody.GenerateKey(alg)
	if err != nil {
		return nil, err
	}
	m.keys[name] = &memoryKey{signer: signer, alg: alg}
	return signer.Public(), nil
}

// Public implements [custody.Keyring].
func (m *Memory) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, err := m.key(ctx, name)
	if err != nil {
		return nil, "", err
	}
	return k.signer.Public(), k.alg, nil
}

// Sign implements [custody.Keyring].
func (m *Memory) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, err := m.key(ctx, name)
	if err != nil {
		return nil, err
	}
	if k.disabled {
		return nil, custody.ErrDisabled
	}
	return custody.SignDigest(k.signer, digest)
}

// Disable implements [custody.Keyring].
func (m *Memory) Disable(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, err := m.key(ctx, name)
	if err != nil {
		return err
	}
	k.disabled = true
	return nil
}

func (m *Memory) key(ctx context.Context, name string) (*memoryKey, error) {
	if err := usable(ctx, name); err != nil {
		return nil, err
	}
	k, ok := m.keys[name]
	if !ok {
		return nil, custody.ErrNotFound
	}
	return k, nil
}

// MAC implements [custody.Keyring].
func (m *Memory) MAC(ctx context.Context, message []byte) ([]byte, error) {
	if err := usable(ctx, "message"); err != nil {
		return nil, err
	}
	h := hmac.New(sha256.New, m.subjectKey)
	h.Write(message)
	return h.Sum(nil), nil
}

// Load implements [custody.Keyring].
func (m *Memory) Load(ctx context.Context, name string) (custody.Document, error) {
	if err := usable(ctx, name); err != nil {
		return custody.Document{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.documents[name]
	if !ok {
		return custody.Document{}, custody.ErrNotFound
	}
	d.Data = slices.Clone(d.Data)
	return d, nil
}

// Swap implements [custody.Keyring].
func (m *Memory) Swap(ctx context.Context, name string, expect uint64, data []byte) (uint64, error) {
	if err := usable(ctx, name); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.documents[name].Revision != expect {
		return 0, custody.ErrConflict
	}
	m.documents[name] = custody.Document{Revision: expect + 1, Data: slices.Clone(data)}
	return expect + 1, nil
}

func usable(ctx context.Context, name string) error {
	if name == "" {
		return fmt.Errorf("%w: a name is required", custody.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("custody: %w", err)
	}
	return nil
}
