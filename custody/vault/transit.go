package vault

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	jsonv2 "github.com/go-json-experiment/json"
	"golang.org/x/sync/singleflight"

	"github.com/pactsigner/pactsigner/custody"
)

const (
	// publicFolder, below the prefix in KV, has the public halves of disabled keys:
	// transit does not show versions below the floor.
	publicFolder = "public"

	// verifyOneIn is how often a signature of Vault's is verified, the first of
	// each key and login aside.
	verifyOneIn = 100

	// reviewEvery is how often the keys in use are looked at, for what somebody else
	// did to them.
	reviewEvery = 5 * time.Minute
)

// transit uses keys that never leave Vault. Each is a transit key of its own, of
// which version 1 signs and no other; a second version exists only to raise the
// floors above the first.
type transit struct {
	client    *client
	mount     string
	prefix    string
	publics   *documents
	log       *slog.Logger
	scheduler *scheduler
	calls     atomic.Uint64 // numbers them; it starts somewhere, so that replicas differ

	loading singleflight.Group
	mu      sync.RWMutex
	keys    map[string]*signingKey

	cancel context.CancelFunc
	done   chan struct{}
}

// signingKey is what is known of a key. Its public half is the one that was seen
// first: another one under the same name later is an alarm, not news.
type signingKey struct {
	name   string // in transit
	alg    jose.SignatureAlgorithm
	public crypto.PublicKey
	queue  *queue
	// flaw is what was wrong with it when this process met it, so that it does not
	// sign here. Its public half is given out all the same: a schedule that knows the
	// key must be read, so that another key can take its place.
	flaw string

	disabled atomic.Bool   // for good
	replaced atomic.Bool   // Vault had another key under its name: never again
	verified atomic.Uint64 // the newest login under which a signature was found right
	suspect  atomic.Bool   // a signature was wrong, or the key was gone: verify all
	alarmed  atomic.Bool   // that it has a flaw was said
}

func newTransit(cfg Config, c *client, mount *kvMount) *transit {
	t := &transit{
		client:  c,
		mount:   cfg.Transit,
		prefix:  cfg.Prefix,
		publics: &documents{client: c, mount: mount, folder: cfg.Prefix + "/" + publicFolder},
		log:     cfg.Log,
		keys:    map[string]*signingKey{},
	}
	t.calls.Store(uint64(rand.Uint32()))
	t.scheduler = newScheduler(t.signBatch)
	t.scheduler.full = c.told.Full
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel, t.done = cancel, make(chan struct{})
	go t.review(ctx)
	return t
}

func (t *transit) close() {
	t.cancel()
	<-t.done
	t.scheduler.close()
}

// review looks at the keys in use until ctx ends.
func (t *transit) review(ctx context.Context) {
	defer close(t.done)
	tick := time.NewTicker(reviewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.reviewOnce(ctx)
		}
	}
}

// reviewOnce keeps no error: what is wrong with a key is an alarm already, and that
// Vault is away is said elsewhere.
func (t *transit) reviewOnce(ctx context.Context) {
	t.mu.RLock()
	keys := slices.Collect(maps.Values(t.keys))
	t.mu.RUnlock()
	for _, k := range keys {
		if k.disabled.Load() || ctx.Err() != nil {
			continue
		}
		d, err := t.describe(ctx, k.name)
		switch {
		case err != nil:
		case d.disabled():
			k.disabled.Store(true)
		default:
			_, _ = t.remember(ctx, k.name, d)
		}
	}
}

// names is what transit takes as a key's name.
var names = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,198}[A-Za-z0-9_])?$`)

// keyName returns a key's name in transit.
func (t *transit) keyName(ctx context.Context, name string) (string, error) {
	if !names.MatchString(name) {
		return "", fmt.Errorf("%w: key name %q: use letters, digits, and - or . inside", custody.ErrInvalid, name)
	}
	if name == "subject" || name == "wrap" {
		return "", fmt.Errorf("%w: %q is no name for a signing key", custody.ErrInvalid, name)
	}
	if ctx.Err() != nil {
		return "", contextError(ctx)
	}
	return t.prefix + "-" + name, nil
}

// keyTypes are transit's types of the keys that we make.
var keyTypes = map[jose.SignatureAlgorithm]string{jose.ES256: "ecdsa-p256", jose.RS256: "rsa-2048"}

// Create implements [custody.Keyring].
func (t *transit) Create(ctx context.Context, name string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	key, err := t.keyName(ctx, name)
	if err != nil {
		return nil, err
	}
	if keyTypes[alg] == "" {
		return nil, fmt.Errorf("%w: algorithm %q is neither ES256 nor RS256", custody.ErrInvalid, alg)
	}
	d, err := t.describe(ctx, key)
	if errors.Is(err, custody.ErrNotFound) {
		// Vault leaves a key as it is that somebody made meanwhile, of whatever kind.
		if _, err = t.client.call(ctx, http.MethodPost, t.mount+"/keys/"+key, map[string]any{
			"type": keyTypes[alg], "exportable": false, "allow_plaintext_backup": false,
		}); err == nil {
			d, err = t.describe(ctx, key)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case d.algorithm() != alg:
		return nil, fmt.Errorf("%w: %s is of type %s", custody.ErrMismatch, key, d.Type)
	case d.disabled():
		t.forget(key)
		return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, key)
	case d.signingFlaw() != "":
		return nil, flawed(key, d.signingFlaw())
	}
	k, err := t.remember(ctx, key, d)
	if err != nil {
		return nil, err
	}
	return k.public, nil
}

// Public implements [custody.Keyring]. It asks Vault each time.
func (t *transit) Public(ctx context.Context, name string) (crypto.PublicKey, jose.SignatureAlgorithm, error) {
	key, err := t.keyName(ctx, name)
	if err != nil {
		return nil, "", err
	}
	d, err := t.describe(ctx, key)
	if err != nil {
		return nil, "", err
	}
	k, err := t.remember(ctx, key, d)
	if err != nil {
		return nil, "", err
	}
	return k.public, k.alg, nil
}

// Sign implements [custody.Keyring].
func (t *transit) Sign(ctx context.Context, name string, digest []byte) ([]byte, error) {
	key, err := t.keyName(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(digest) != sha256.Size {
		return nil, fmt.Errorf("%w: a digest has %d bytes, not %d", custody.ErrInvalid, sha256.Size, len(digest))
	}
	k, err := t.key(ctx, key)
	if err != nil {
		return nil, err
	}
	switch {
	case k.disabled.Load():
		return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, key)
	case k.replaced.Load():
		return nil, replaced(key)
	case k.flaw != "":
		return nil, flawed(key, k.flaw)
	}
	return t.scheduler.sign(ctx, k.queue, digest)
}

// Disable implements [custody.Keyring]. Each of its steps may be the last one of
// an attempt that was interrupted; the next attempt goes on from there.
func (t *transit) Disable(ctx context.Context, name string) error {
	key, err := t.keyName(ctx, name)
	if err != nil {
		return err
	}
	d, err := t.describe(ctx, key)
	if err != nil {
		return err
	}
	if d.algorithm() == "" {
		return fmt.Errorf("%w: %s is of type %s", custody.ErrMismatch, key, d.Type)
	}
	if d.MinDecryption < 2 {
		// First, because afterwards Vault does not tell it any more.
		if err := t.keepPublic(ctx, key, d); err != nil {
			return fmt.Errorf("disabling %s: %w", key, err)
		}
	}
	if d.Latest < 2 {
		if _, err := t.client.call(ctx, http.MethodPost, t.mount+"/keys/"+key+"/rotate", map[string]any{}); err != nil {
			return fmt.Errorf("disabling %s: %w", key, err)
		}
	}
	if d.MinDecryption < 2 || d.MinEncryption < 2 {
		// As text: Vault's policies compare parameters, and no number of a request
		// equals a number of a policy.
		if _, err := t.client.call(ctx, http.MethodPost, t.mount+"/keys/"+key+"/config", map[string]any{
			"min_decryption_version": "2", "min_encryption_version": "2",
		}); err != nil {
			return fmt.Errorf("disabling %s: %w", key, err)
		}
	}
	t.forget(key)
	return nil
}

// MAC implements [custody.Keyring].
func (t *transit) MAC(ctx context.Context, message []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	key := t.prefix + "-subject"
	secret, err := t.client.call(ctx, http.MethodPost, t.mount+"/hmac/"+key, map[string]any{
		"input": base64.StdEncoding.EncodeToString(message), "algorithm": "sha2-256", "key_version": 1,
	})
	if errors.Is(err, custody.ErrInvalid) || errors.Is(err, custody.ErrNotFound) {
		return nil, fmt.Errorf("%w: the subject key %s: %v", custody.ErrUnavailable, key, err)
	}
	if err != nil {
		return nil, err
	}
	var sum string
	if secret != nil {
		sum, _ = secret.Data["hmac"].(string)
	}
	mac, err := parseHMAC(sum)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", custody.ErrUnavailable, key, err)
	}
	return mac, nil
}

// key returns what is known of a key, asking Vault the first time.
func (t *transit) key(ctx context.Context, key string) (*signingKey, error) {
	t.mu.RLock()
	k := t.keys[key]
	t.mu.RUnlock()
	if k != nil {
		return k, nil
	}
	loaded := t.loading.DoChan(key, func() (any, error) {
		// Others may wait for it: it does not end with this caller.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		d, err := t.describe(ctx, key)
		switch {
		case err != nil:
			return nil, err
		case d.disabled(): // whatever became of its public half
			return nil, fmt.Errorf("%w: %s", custody.ErrDisabled, key)
		}
		return t.remember(ctx, key, d)
	})
	select {
	case r := <-loaded:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*signingKey), nil
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
}

// replaced says that a key is not the one that was used before.
func replaced(key string) error {
	return fmt.Errorf("%w: Vault held another key than before as %s", custody.ErrUnavailable, key)
}

// flawed says why a key does not sign.
func flawed(key, flaw string) error {
	return fmt.Errorf("%w: %s: %s, so that its private half may be outside of Vault", custody.ErrMismatch, key, flaw)
}

// remember returns the key that a description is of, and raises the alarm if it is
// not as it should be. One that signs already signs on with a flaw: whether it must
// go is the operator's decision.
func (t *transit) remember(ctx context.Context, key string, d description) (*signingKey, error) {
	public, err := t.publicHalf(ctx, key, d)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if k == nil {
		k = &signingKey{name: key, alg: d.algorithm(), public: public, flaw: d.signingFlaw()}
		k.queue = &queue{key: k}
		t.keys[key] = k
	}
	if d.disabled() {
		k.disabled.Store(true)
	}
	if !equalKeys(k.public, public) && k.replaced.CompareAndSwap(false, true) {
		t.log.ErrorContext(ctx, "Vault holds another key than before under the same name: it is not used any more", "key", key)
	}
	if k.replaced.Load() {
		return nil, replaced(key)
	}
	if flaw := d.signingFlaw(); flaw != "" && !d.disabled() && k.alarmed.CompareAndSwap(false, true) {
		t.log.ErrorContext(ctx, "the private half of a key may be outside of Vault: let another key take its place", "key", key, "flaw", flaw, "signs", k.flaw == "")
	}
	return k, nil
}

// forget marks a key as disabled, if it is known.
func (t *transit) forget(key string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if k := t.keys[key]; k != nil {
		k.disabled.Store(true)
	}
}

// suspect has every later signature of a key verified, if it is known.
func (t *transit) suspect(key string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if k := t.keys[key]; k != nil {
		k.suspect.Store(true)
	}
}

// description is what transit tells about a key.
type description struct {
	Type            string `json:"type"`
	Derived         bool   `json:"derived"`
	Exportable      bool   `json:"exportable"`
	PlaintextBackup bool   `json:"allow_plaintext_backup"`
	DeletionAllowed bool   `json:"deletion_allowed"`
	Imported        bool   `json:"imported_key"`
	Latest          int    `json:"latest_version"`
	MinDecryption   int    `json:"min_decryption_version"`
	MinEncryption   int    `json:"min_encryption_version"`
	// Keys has an entry for each version that is not below the floor: an object for
	// those with a public half, a number for others.
	Keys map[string]json.RawMessage `json:"keys"`
}

func (t *transit) describe(ctx context.Context, key string) (description, error) {
	secret, err := t.client.call(ctx, http.MethodGet, t.mount+"/keys/"+key, nil)
	if errors.Is(err, custody.ErrNotFound) {
		t.suspect(key) // who deleted it may make another
	}
	if err != nil {
		return description{}, err
	}
	var d description
	if err := decode(secret, &d); err != nil {
		return description{}, fmt.Errorf("%w: what Vault tells about %s: %w", custody.ErrUnavailable, key, err)
	}
	return d, nil
}

// algorithm is empty if the key is for none of ours.
func (d description) algorithm() jose.SignatureAlgorithm {
	switch d.Type {
	case "ecdsa-p256":
		return jose.ES256
	case "rsa-2048", "rsa-3072":
		return jose.RS256
	default:
		return ""
	}
}

// disabled reports whether version 1 cannot sign.
func (d description) disabled() bool { return d.MinEncryption >= 2 || d.MinDecryption >= 2 }

// leaks says how a key could leave Vault; empty: it can not.
func (d description) leaks() string {
	switch {
	case d.Exportable:
		return "it is exportable, which can not be undone"
	case d.PlaintextBackup:
		return "it allows a plaintext backup, which can not be undone"
	default:
		return ""
	}
}

// signingFlaw says why a key of a fitting type can not be a signing key; empty: it
// can.
func (d description) signingFlaw() string {
	switch leak := d.leaks(); {
	case leak != "":
		return leak
	case d.Imported:
		return "it was imported"
	case d.Derived:
		return "it is derived"
	default:
		return ""
	}
}

// publicHalf returns the public half of version 1.
func (t *transit) publicHalf(ctx context.Context, key string, d description) (crypto.PublicKey, error) {
	if d.algorithm() == "" {
		return nil, fmt.Errorf("%w: %s is of type %s", custody.ErrMismatch, key, d.Type)
	}
	text, err := d.publicPEM()
	if err == nil && text == "" {
		var kept custody.Document
		if kept, err = t.publics.Load(ctx, key); errors.Is(err, custody.ErrNotFound) {
			// The key is there, whatever became of its public half.
			err = fmt.Errorf("%w: Vault does not show version 1 of %s any more, and nothing kept its public half", custody.ErrUnavailable, key)
		}
		text = string(kept.Data)
	}
	if err != nil {
		return nil, err
	}
	public, err := parsePublic(text, d.algorithm())
	if err != nil {
		return nil, fmt.Errorf("%w: public half of %s: %w", custody.ErrUnavailable, key, err)
	}
	return public, nil
}

// publicPEM is the public half of version 1 as Vault shows it, empty if it does not.
func (d description) publicPEM() (string, error) {
	raw, ok := d.Keys["1"]
	if !ok {
		return "", nil
	}
	var version struct {
		PublicKey string `json:"public_key"`
	}
	if err := json.Unmarshal(raw, &version); err != nil || version.PublicKey == "" {
		return "", fmt.Errorf("%w: Vault shows no public half", custody.ErrUnavailable)
	}
	return version.PublicKey, nil
}

// keepTries is one more than replicas that write the same thing need.
const keepTries = 3

// keepPublic writes the public half of a key to where it outlives the key.
func (t *transit) keepPublic(ctx context.Context, key string, d description) error {
	text, err := d.publicPEM()
	if err != nil {
		return err
	}
	if text == "" {
		return fmt.Errorf("%w: Vault does not show version 1", custody.ErrUnavailable)
	}
	for range keepTries {
		kept, err := t.publics.Load(ctx, key)
		if err == nil && string(kept.Data) == text {
			return nil
		}
		if err != nil && !errors.Is(err, custody.ErrNotFound) {
			return err
		}
		if _, err = t.publics.Swap(ctx, key, kept.Revision, []byte(text)); !errors.Is(err, custody.ErrConflict) {
			return err
		}
		// Another replica was faster, and wrote the same.
	}
	return fmt.Errorf("%w: somebody else writes another public half of %s", custody.ErrUnavailable, key)
}

// parsePublic reads a public half for alg.
func parsePublic(text string, alg jose.SignatureAlgorithm) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		if alg == jose.ES256 && public.Curve.Params().BitSize == 256 {
			return public, nil
		}
	case *rsa.PublicKey:
		if alg == jose.RS256 && public.N.BitLen() >= custody.RSABits {
			return public, nil
		}
	}
	return nil, fmt.Errorf("it is a %T, which is not for %s", public, alg)
}

func equalKeys(a, b crypto.PublicKey) bool {
	e, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && e.Equal(b)
}

// signBatch asks Vault for the signatures of one batch.
func (t *transit) signBatch(ctx context.Context, q *queue, batch []*item) error {
	k, call := q.key, t.calls.Add(1)
	if k.replaced.Load() { // since they began to wait
		return replaced(k.name)
	}
	ctx, ended := t.client.told.Batch(ctx, len(batch), func(yield func(context.Context) bool) {
		for _, it := range batch {
			if !yield(it.ctx) {
				return
			}
		}
	})
	answer, login, err := t.client.request(ctx, http.MethodPost, t.mount+"/sign/"+k.name, appendBatch(nil, call, batch))
	ended()
	if err != nil {
		return t.explain(ctx, k, err)
	}
	results, err := parseBatch(answer, call, len(batch))
	if err != nil {
		t.log.ErrorContext(ctx, "Vault's answer does not match what it was asked", "key", k.name, "error", err)
		return fmt.Errorf("%w: signing with %s: %w", custody.ErrUnavailable, k.name, err)
	}
	var refused error
	wrong := false
	for i, r := range results {
		if r.Error != "" {
			if refused == nil { // one question is enough for all
				refused = t.explain(ctx, k, fmt.Errorf("%w: signing with %s: Vault says %s", custody.ErrInvalid, k.name, r.Error))
			}
			batch[i].signature, batch[i].err = nil, refused
			continue
		}
		batch[i].signature, batch[i].err = t.accept(ctx, k, login, batch[i].digest[:], r.Signature)
		wrong = wrong || batch[i].err != nil
	}
	if wrong { // is it another key?
		if d, err := t.describe(ctx, k.name); err == nil && !d.disabled() {
			_, _ = t.remember(ctx, k.name, d)
		}
	}
	return nil
}

// explain finds out why Vault refuses to sign: the key may be disabled or gone.
// Anything else is a fault that no caller can mend, so it counts as unavailable.
func (t *transit) explain(ctx context.Context, k *signingKey, refused error) error {
	if !errors.Is(refused, custody.ErrInvalid) && !errors.Is(refused, custody.ErrNotFound) {
		return refused
	}
	d, err := t.describe(ctx, k.name)
	switch {
	case errors.Is(err, custody.ErrNotFound):
		return err
	case err == nil && d.disabled():
		k.disabled.Store(true)
		return fmt.Errorf("%w: %s", custody.ErrDisabled, k.name)
	}
	if err == nil {
		_, _ = t.remember(ctx, k.name, d) // is it another key?
	}
	if k.replaced.Load() {
		return replaced(k.name)
	}
	t.log.ErrorContext(ctx, "Vault refuses to sign", "key", k.name, "error", refused)
	return fmt.Errorf("%w: %v", custody.ErrUnavailable, refused)
}

// accept reads one signature, and verifies it if it is its turn.
func (t *transit) accept(ctx context.Context, k *signingKey, login uint64, digest []byte, text string) ([]byte, error) {
	signature, err := parseSignature(text, k.public)
	if err == nil && (k.suspect.Load() || k.verified.Load() < login || rand.IntN(verifyOneIn) == 0) {
		if verifySignature(k.public, digest, signature) {
			raise(&k.verified, login)
		} else {
			k.suspect.Store(true)
			err = errors.New("the signature does not verify")
		}
	}
	if err != nil {
		t.log.ErrorContext(ctx, "Vault gave a wrong signature", "key", k.name, "error", err)
		return nil, fmt.Errorf("%w: signing with %s: %w", custody.ErrUnavailable, k.name, err)
	}
	return signature, nil
}

// raise makes v at least n.
func raise(v *atomic.Uint64, n uint64) {
	for old := v.Load(); old < n && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// verifySignature takes what parseSignature returned.
func verifySignature(public crypto.PublicKey, digest, signature []byte) bool {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
		return ecdsa.Verify(public, digest, r, s)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, digest, signature) == nil
	default:
		return false
	}
}

// The parts of a batch's body. Every call names the version, the hash and the
// forms, so that no default of Vault's decides (RSA's would be PSS).
const (
	batchStart = `{"key_version":1,"prehashed":true,"hash_algorithm":"sha2-256",` +
		`"signature_algorithm":"pkcs1v15","marshaling_algorithm":"jws","batch_input":[`
	batchEnd = `]}`

	itemStart     = `{"input":"`
	itemReference = `","reference":"`
	itemEnd       = `"},`
)

// appendBatch appends the body of a batch, in one allocation if b is nil. It is
// not taken from a pool: the transport may still read a body whose call has ended.
func appendBatch(b []byte, call uint64, batch []*item) []byte {
	if b == nil {
		reference := 20 + 1 + 3 // the longest
		each := len(itemStart) + base64.StdEncoding.EncodedLen(sha256.Size) + len(itemReference) + reference + len(itemEnd)
		b = make([]byte, 0, len(batchStart)+len(batch)*each+len(batchEnd))
	}
	b = append(b, batchStart...)
	for i, it := range batch {
		b = append(b, itemStart...)
		b = base64.StdEncoding.AppendEncode(b, it.digest[:])
		b = append(b, itemReference...)
		b = appendReference(b, call, i)
		b = append(b, itemEnd...)
	}
	return append(b[:len(b)-1], batchEnd...) // without the last comma
}

// appendReference appends what names an item: other calls have other numbers, so
// that an answer to one of them is not taken for this one's.
func appendReference(b []byte, call uint64, i int) []byte {
	b = strconv.AppendUint(b, call, 10)
	b = append(b, '.')
	return strconv.AppendInt(b, int64(i), 10)
}

// batchResult is Vault's answer to one item.
type batchResult struct {
	Signature string `json:"signature"`
	Error     string `json:"error"`
	Reference string `json:"reference"`
}

// parseBatch reads the answer to a call of n items. Every item must be answered
// once, in order, with its reference, by a signature or an error.
func parseBatch(answer []byte, call uint64, n int) ([]batchResult, error) {
	var a struct {
		Data struct {
			Results []batchResult `json:"batch_results"`
		} `json:"data"`
	}
	a.Data.Results = make([]batchResult, 0, n)
	if err := jsonv2.Unmarshal(answer, &a); err != nil { // which takes no member twice
		return nil, fmt.Errorf("reading the batch: %w", err)
	}
	if len(a.Data.Results) != n {
		return nil, fmt.Errorf("%d results for %d items", len(a.Data.Results), n)
	}
	var want []byte
	for i, r := range a.Data.Results {
		if want = appendReference(want[:0], call, i); r.Reference != string(want) {
			return nil, fmt.Errorf("result %d has reference %q, not %s", i, r.Reference, want)
		}
		if (r.Signature == "") == (r.Error == "") {
			return nil, fmt.Errorf("result %d is not either a signature or an error", i)
		}
	}
	return a.Data.Results, nil
}

// versionOne starts every signature and HMAC of a key's first version.
const versionOne = "vault:v1:"

// parseSignature reads a signature by version 1 as JWS marshaling gives it.
func parseSignature(text string, public crypto.PublicKey) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, versionOne)
	if !ok {
		return nil, errors.New("the signature is not by version 1")
	}
	signature, err := rawURL.DecodeString(encoded)
	if err != nil || len(encoded) != rawURL.EncodedLen(len(signature)) {
		return nil, errors.New("the signature is not in base64url")
	}
	want := 64
	if public, ok := public.(*rsa.PublicKey); ok {
		want = public.Size()
	}
	if len(signature) != want {
		return nil, fmt.Errorf("the signature has %d bytes, not %d", len(signature), want)
	}
	return signature, nil
}

// parseHMAC reads an HMAC-SHA-256 by version 1.
func parseHMAC(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, versionOne)
	if !ok {
		return nil, errors.New("the HMAC is not by version 1")
	}
	mac, err := std.DecodeString(encoded)
	if err != nil || len(mac) != sha256.Size || len(encoded) != std.EncodedLen(len(mac)) {
		return nil, fmt.Errorf("the HMAC is not %d bytes in base64", sha256.Size)
	}
	return mac, nil
}

// Strict: one text for one value. Decoding skips line breaks even so, which the
// length gives away.
var (
	rawURL = base64.RawURLEncoding.Strict()
	std    = base64.StdEncoding.Strict()
)
