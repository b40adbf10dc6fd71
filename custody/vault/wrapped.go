package vault

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/pactsigner/pactsigner/custody"
	"github.com/pactsigner/pactsigner/jwks"
)

const (
	// tendEvery is how often the keys in memory are compared with Vault: another
	// replica's Disable is seen by then, if Vault answers.
	tendEvery = 30 * time.Second
	// tendSoon is the same while something is still missing.
	tendSoon = 2 * time.Second
	// loadTimeout bounds the loading of a key, which several callers may wait for.
	loadTimeout = 2 * callTimeout

	// mirrorKey names the key that authenticates the schedule's mirror.
	mirrorKey = "schedule-mirror"
	// mirrorAlgorithm keeps it apart from a signing key of that name.
	mirrorAlgorithm = jose.HS256
)

// wrapped keeps private keys in this process, and in KV encrypted under a transit
// key. A key that was used once, or whose public half was asked for, is used from
// memory whatever becomes of Vault.
type wrapped struct {
	client  *client
	records *documents // one for each key, named as the key is
	transit string     // mount
	wrapKey string     // name in transit
	prefix  string
	log     *slog.Logger

	loading singleflight.Group

	mu     sync.RWMutex
	keys   map[string]*wrappedKey
	mirror []byte // HMAC key; nil until Vault gave it

	cancel context.CancelFunc
	done   chan struct{}
}

// wrappedKey is a key in memory. It is not changed, but replaced.
type wrappedKey struct {
	alg      jose.SignatureAlgorithm
	public   crypto.PublicKey
	signer   crypto.Signer // nil: disabled, or not unwrapped yet
	disabled bool
}

// keyRecord is a key as KV has it.
type keyRecord struct {
	Algorithm jose.SignatureAlgorithm `json:"alg"`
	// Public is the public half (PKIX, PEM), KID its thumbprint. Both are empty for
	// the mirror's key.
	Public string `json:"public,omitempty"`
	KID    string `json:"kid,omitempty"`
	// Wrapped is the private half (PKCS #8) as transit encrypted it. A disabled key
	// has none.
	Wrapped  string `json:"wrapped,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
}

func newWrapped(cfg Config, c *client, mount *kvMount) *wrapped {
	ctx, cancel := context.WithCancel(context.Background())
	w := &wrapped{
		client:  c,
		records: &documents{client: c, mount: mount, folder: cfg.Prefix + "/" + keysFolder},
		transit: cfg.Transit,
		wrapKey: cfg.wrapKey(),
		prefix:  cfg.Prefix,
		log:     cfg.Log,
		keys:    map[string]*wrappedKey{},
		cancel:  cancel,
		done:    make(chan struct{}),
	}
	go w.tend(ctx)
	return w
}

// close forgets the keys.
func (w *wrapped) close() {
	w.cancel()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.keys)
	clear(w.mirror)
	w.mirror = nil
}

// Create implements [custody.Keyring]. The key is written whole and once: of
// several replicas the one whose check-and-set comes first makes it, the others
// adopt it.
func (w *wrapped) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	if alg != jose.ES256 && alg != jose.RS256 {
		return nil, fmt.Errorf("%w: algorithm %q is neither ES256 nor RS256", custody.ErrInvalid, alg)
	}
	k, err := w.key(ctx, name)
	if errors.Is(err, custody.ErrNotFound) {
		if err = w.make(ctx, name, alg); err == nil || errors.Is(err, custody.ErrConflict) {
			// Not by key, which might wait for a load that began before the record was.
			k, err = w.load(ctx, name)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case k.alg != alg:
		return nil, fmt.Errorf("%w: key %s is for %s", custody.ErrMismatch, name, k.alg)
	case k.disabled:
		return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, name)
	default:
		return k.public, nil
	}
}

// make generates a key and writes its record.
func (w *wrapped) make(ctx context.Context, name string, alg jose.SignatureAlgorithm) error {
	signer, err := custody.GenerateKey(alg)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return fmt.Errorf("%w: %w", custody.ErrInvalid, err)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return fmt.Errorf("%w: %w", custody.ErrInvalid, err)
	}
	kid, err := jwks.Thumbprint(signer.Public())
	if err != nil {
		return fmt.Errorf("%w: %w", custody.ErrInvalid, err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	return w.write(ctx, name, keyRecord{Algorithm: alg, Public: string(text), KID: kid}, private)
}

// write wraps a secret and makes the record that holds it.
func (w *wrapped) write(ctx context.Context, name string, record keyRecord, secret []byte) error {
	secretAnswer, err := w.client.call(ctx, http.MethodPost, w.transit+"/encrypt/"+w.wrapKey, map[string]any{
		"plaintext": secret, "associated_data": w.binding(name, record),
	})
	clear(secret)
	if err != nil {
		return w.wrapError(name, err)
	}
	var answer struct {
		Ciphertext string `json:"ciphertext"`
	}
	if err := decode(secretAnswer, &answer); err != nil || answer.Ciphertext == "" {
		return fmt.Errorf("%w: Vault wrapped key %s into nothing", custody.ErrUnavailable, name)
	}
	record.Wrapped = answer.Ciphertext
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("%w: %w", custody.ErrInvalid, err)
	}
	_, err = w.records.Swap(ctx, name, 0, data)
	return err
}

// unwrap returns the secret of a record, if it was wrapped for that record.
func (w *wrapped) unwrap(ctx context.Context, name string, record keyRecord) ([]byte, error) {
	secret, err := w.client.call(ctx, http.MethodPost, w.transit+"/decrypt/"+w.wrapKey, map[string]any{
		"ciphertext": record.Wrapped, "associated_data": w.binding(name, record),
	})
	if err != nil {
		return nil, w.wrapError(name, err)
	}
	var answer struct {
		Plaintext []byte `json:"plaintext"`
	}
	if err := decode(secret, &answer); err != nil {
		return nil, fmt.Errorf("%w: key %s: %w", custody.ErrUnavailable, name, err)
	}
	return answer.Plaintext, nil
}

// wrapError puts it in our words when Vault will not wrap or unwrap. That is no
// fault of the caller's arguments, as Vault has it.
func (w *wrapped) wrapError(name string, err error) error {
	if errors.Is(err, custody.ErrInvalid) || errors.Is(err, custody.ErrNotFound) {
		return fmt.Errorf("%w: key %s: the transit key %s is not there, or did not wrap this record, which somebody changed or moved (%v)", custody.ErrUnavailable, name, w.wrapKey, err)
	}
	return fmt.Errorf("key %s: %w", name, err)
}

// binding is what a wrapped secret is bound to: moved to another name, or beside
// another public half, it does not unwrap.
func (w *wrapped) binding(name string, record keyRecord) []byte {
	var b []byte
	for _, part := range []string{"pact-wrap/1", w.prefix, name, string(record.Algorithm), record.KID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// Public implements [custody.Keyring]. It takes the private half into memory too,
// so that a key that is published now signs later, even while Vault is away.
func (w *wrapped) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	k, err := w.key(ctx, name)
	if k == nil {
		return nil, "", err
	}
	return k.public, k.alg, nil
}

// Sign implements [custody.Keyring], in this process.
func (w *wrapped) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("%w: a digest has %d bytes, not %d", custody.ErrInvalid, sha256.Size, len(digest))
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("custody/vault: %w", err)
	}
	k, err := w.key(ctx, name)
	if err != nil {
		return nil, err
	}
	if k.disabled {
		return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, name)
	}
	return custody.SignDigest(k.signer, digest)
}

// Disable implements [custody.Keyring]: the record loses the private half, and the
// versions of it that KV kept are destroyed. Other replicas see it within
// tendEvery; what stops them from signing at once is the schedule.
func (w *wrapped) Disable(ctx context.Context, name string) error {
	for {
		doc, err := w.records.Load(ctx, name)
		if err != nil {
			return err
		}
		record, k, err := readRecord(name, doc.Data)
		if err != nil {
			return err
		}
		k.disabled = true
		w.put(name, k) // whatever happens next, this process signs no more with it
		if record.Disabled {
			return w.records.destroyBefore(ctx, name, doc.Revision)
		}
		record.Disabled, record.Wrapped = true, ""
		data, err := json.Marshal(record)
		if err != nil {
			return fmt.Errorf("%w: %w", custody.ErrInvalid, err)
		}
		if _, err := w.records.Swap(ctx, name, doc.Revision, data); err != nil && !errors.Is(err, custody.ErrConflict) {
			return err
		}
		// Again: whoever wrote it, the record as it stands now decides.
	}
}

// key returns a key from memory, or takes it there. With an error of unwrapping it
// returns the public half all the same.
func (w *wrapped) key(ctx context.Context, name string) (*wrappedKey, error) {
	w.mu.RLock()
	k := w.keys[name]
	w.mu.RUnlock()
	if k != nil && (k.disabled || k.signer != nil) {
		return k, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("custody/vault: %w", err)
	}
	// One caller's deadline must not end what others wait for.
	loading := w.loading.DoChan(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		return w.load(ctx, name)
	})
	select {
	case loaded := <-loading:
		k, _ := loaded.Val.(*wrappedKey)
		return k, loaded.Err
	case <-ctx.Done():
		return k, contextError(ctx)
	}
}

// load reads a record and unwraps its private half.
func (w *wrapped) load(ctx context.Context, name string) (*wrappedKey, error) {
	doc, err := w.records.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	record, k, err := readRecord(name, doc.Data)
	if err != nil {
		return nil, err
	}
	if k.disabled {
		return w.put(name, k), nil
	}
	private, err := w.unwrap(ctx, name, record)
	if err != nil {
		return w.put(name, k), err
	}
	defer clear(private)
	parsed, err := x509.ParsePKCS8PrivateKey(private)
	if err != nil {
		// The cause could quote the key.
		return w.put(name, k), fmt.Errorf("%w: key %s unwraps to no private key", custody.ErrUnavailable, name)
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok || !equalKeys(signer.Public(), k.public) {
		return w.put(name, k), fmt.Errorf("%w: key %s unwraps to another key than its record says", custody.ErrUnavailable, name)
	}
	k.signer = signer
	return w.put(name, k), nil
}

// put remembers a key, unless what is remembered is already more: a disabled key
// stays so, and a private half is not forgotten for want of an answer.
func (w *wrapped) put(name string, k *wrappedKey) *wrappedKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	if had := w.keys[name]; had != nil && (had.disabled || had.signer != nil && !k.disabled) {
		return had
	}
	if k.disabled {
		k.signer = nil
	}
	w.keys[name] = k
	return k
}

// readRecord reads a record and checks that its public half is what its thumbprint
// and algorithm say.
func readRecord(name string, data []byte) (keyRecord, *wrappedKey, error) {
	var record keyRecord
	if err := json.Unmarshal(data, &record); err != nil {
		return record, nil, fmt.Errorf("%w: the record of key %s: %w", custody.ErrUnavailable, name, err)
	}
	public, err := parsePublic(record.Public, record.Algorithm)
	if err != nil {
		return record, nil, fmt.Errorf("%w: the record of key %s: %w", custody.ErrUnavailable, name, err)
	}
	kid, err := jwks.Thumbprint(public)
	if err != nil {
		return record, nil, fmt.Errorf("%w: the record of key %s: %w", custody.ErrUnavailable, name, err)
	}
	if kid != record.KID {
		return record, nil, fmt.Errorf("%w: the record of key %s says %s, its public half is %s; somebody changed it", custody.ErrUnavailable, name, record.KID, kid)
	}
	return record, &wrappedKey{alg: record.Algorithm, public: public, disabled: record.Disabled}, nil
}

// tend takes into memory what is not there yet, and drops what was disabled
// elsewhere.
func (w *wrapped) tend(ctx context.Context) {
	defer close(w.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next := tendEvery
		err := w.tendOnce(ctx)
		if err != nil {
			next = tendSoon
		}
		if err != nil && !failing && ctx.Err() == nil {
			w.log.WarnContext(ctx, "keys in memory can not be compared with Vault; trying on", "error", err)
		}
		failing = err != nil
		timer.Reset(next)
	}
}

// tendOnce looks at every key, whatever is wrong with another.
func (w *wrapped) tendOnce(ctx context.Context) error {
	errs := []error{w.loadMirror(ctx)}
	w.mu.RLock()
	names := slices.Sorted(maps.Keys(w.keys))
	w.mu.RUnlock()
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		w.mu.RLock()
		k := w.keys[name]
		w.mu.RUnlock()
		switch {
		case k.disabled:
		case k.signer == nil:
			_, err := w.key(ctx, name)
			errs = append(errs, err)
		default:
			errs = append(errs, w.dropIfDisabled(ctx, name))
		}
	}
	return errors.Join(errs...)
}

func (w *wrapped) dropIfDisabled(ctx context.Context, name string) error {
	doc, err := w.records.Load(ctx, name)
	if err != nil {
		return err
	}
	_, k, err := readRecord(name, doc.Data)
	if err != nil {
		return err
	}
	if k.disabled {
		w.put(name, k)
	}
	return nil
}

// loadMirror takes the mirror's key into memory, and makes it if there is none.
func (w *wrapped) loadMirror(ctx context.Context) error {
	w.mu.RLock()
	known := w.mirror != nil
	w.mu.RUnlock()
	if known {
		return nil
	}
	doc, err := w.records.Load(ctx, mirrorKey)
	if errors.Is(err, custody.ErrNotFound) {
		key := make([]byte, sha256.Size)
		if _, err := rand.Read(key); err != nil {
			return fmt.Errorf("%w: %w", custody.ErrUnavailable, err)
		}
		if err := w.write(ctx, mirrorKey, keyRecord{Algorithm: mirrorAlgorithm}, key); err != nil && !errors.Is(err, custody.ErrConflict) {
			return err
		}
		doc, err = w.records.Load(ctx, mirrorKey)
	}
	if err != nil {
		return err
	}
	var record keyRecord
	if err := json.Unmarshal(doc.Data, &record); err != nil || record.Algorithm != mirrorAlgorithm {
		return fmt.Errorf("%w: the record of the mirror's key is damaged", custody.ErrUnavailable)
	}
	key, err := w.unwrap(ctx, mirrorKey, record)
	if err != nil {
		return err
	}
	if len(key) != sha256.Size {
		return fmt.Errorf("%w: the mirror's key is damaged", custody.ErrUnavailable)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mirror = key
	return nil
}

// ErrMirror: the bytes are no mirror that a keyring of this prefix sealed.
var ErrMirror = errors.New("custody/vault: the mirror was not sealed by this deployment")

const mirrorMagic = "pact-mirror/1\n"

// SealMirror authenticates a document that is kept where others can write, so that
// it can be believed while Vault is away. It is not encrypted. nil means that there
// is no key for it: in mode transit, or before Vault was reached for the first time.
// Nothing tells an old mirror from the newest: keep the revision in the document,
// and accept no lower one.
func (k *Keyring) SealMirror(doc []byte) []byte {
	mac := k.mirrorMAC(doc)
	if mac == nil {
		return nil
	}
	return slices.Concat([]byte(mirrorMagic), mac, doc)
}

// OpenMirror returns the document that SealMirror sealed, in this or another
// process. It works without Vault once this process has reached it; before that,
// and in mode transit, it fails with custody.ErrUnavailable. What was not sealed by
// this deployment is [ErrMirror].
func (k *Keyring) OpenMirror(sealed []byte) ([]byte, error) {
	head := len(mirrorMagic) + sha256.Size
	if len(sealed) < head || string(sealed[:len(mirrorMagic)]) != mirrorMagic {
		return nil, ErrMirror
	}
	doc := sealed[head:]
	mac := k.mirrorMAC(doc)
	if mac == nil {
		return nil, fmt.Errorf("%w: the mirror's key is not in memory", custody.ErrUnavailable)
	}
	if !hmac.Equal(mac, sealed[len(mirrorMagic):head]) {
		return nil, ErrMirror
	}
	return slices.Clone(doc), nil
}

func (k *Keyring) mirrorMAC(doc []byte) []byte {
	if k.wrapped == nil {
		return nil
	}
	k.wrapped.mu.RLock()
	defer k.wrapped.mu.RUnlock()
	if k.wrapped.mirror == nil {
		return nil
	}
	h := hmac.New(sha256.New, k.wrapped.mirror)
	h.Write([]byte(mirrorMagic))
	h.Write(doc)
	return h.Sum(nil)
}
