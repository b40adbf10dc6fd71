// Package redis keeps what a fleet of signers shares in one Redis: the signer's
// records, the kill switch, the key schedules' mirrors and the audit log. It
// works with a standalone server, with Sentinel and with Cluster, 6.2 and later.
//
// Records hash to 256 tags, each a Redis Cluster slot of its own, and what there
// is one of per deployment is in one more slot, {g}. Each slot carries the
// deployment's marker, and every script demands it before anything else: data
// that is missing, wiped or somebody else's is an error, never an unknown caller.
// A sign is one script in one slot, in one round trip.
//
// An act that touches several slots goes fail-closed: what ends somebody's access
// comes first, what gives it last. Its audit entry is written ahead as an intent,
// so that an act cut short is in the log too.
//
// No script is ever sent twice because its answer was lost. A lost answer is an
// error, and what the script did stands: a device whose jti was used up by a call
// that failed signs again with a fresh one.
//
// The store's user needs no more than ACL says.
package redis

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/singleflight"

	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

var _ signer.Store = (*Store)(nil)

// The modes of Options.
const (
	Standalone = "standalone"
	Sentinel   = "sentinel"
	Cluster    = "cluster"
)

// Options are the store's settings.
type Options struct {
	// Mode is standalone, sentinel or cluster; empty is standalone. Addrs are the
	// server, the sentinels or some of the cluster's nodes.
	Mode  string
	Addrs []string
	// MasterName is the name that the sentinels give the master.
	MasterName string

	Username, Password                 string
	SentinelUsername, SentinelPassword string
	// Credentials, if set, is asked instead of Username and Password at each new
	// connection to a server: a password that is exchanged needs no restart.
	Credentials func(ctx context.Context) (user, password string, err error)
	TLS         *tls.Config

	// Prefix begins every key; empty is "pact".
	Prefix string
	// Acks is how many copies must acknowledge a permit, a kill, an invalidation
	// and a revocation; 0 waits for none.
	Acks int
	// Replay is how long a jti is kept from its first use; 0 is 240 s. It
	// belongs to the lifetime of assertions and is not scaled.
	Replay time.Duration
	// Registered is how long after its last beat a replica counts; 0 is the
	// kill switch's default.
	Registered time.Duration
	// NeverSigned is how long a device is kept that has not signed since it
	// enrolled; 0 is 30 days.
	NeverSigned time.Duration
	// Offset is added to the server's clock in every script, for tests; nil is
	// none.
	Offset func() time.Duration
	// Log is told what nobody returns; nil is slog.Default.
	Log *slog.Logger

	timeouts timeouts // zero: defaultTimeouts
}

// String names the place without the passwords.
func (o Options) String() string {
	return fmt.Sprintf("redis %s %s", o.Mode, strings.Join(o.Addrs, ","))
}

// Format is String for every verb.
func (o Options) Format(f fmt.State, _ rune) { io.WriteString(f, o.String()) }

// LogValue is String, for slog.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

func (o Options) orDefaults() Options {
	if o.Mode == "" {
		o.Mode = Standalone
	}
	if o.Prefix == "" {
		o.Prefix = "pact"
	}
	for _, f := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.Replay, 240 * time.Second},
		{&o.Registered, killswitch.Defaults().Registered},
		{&o.NeverSigned, 30 * 24 * time.Hour},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.timeouts == (timeouts{}) {
		o.timeouts = defaultTimeouts
	}
	return o
}

var (
	// ErrUnmarked: the store bears no mark of its deployment: it is empty, was
	// wiped, or nothing is known yet of which one it must be.
	ErrUnmarked error = notOurs("is empty or bears no mark of its deployment")
	// ErrForeign: the store has the mark of another deployment.
	ErrForeign error = notOurs("belongs to another deployment, or is from before its loss was accepted")
	// ErrFormat: the store was written by a version that this one does not know.
	ErrFormat = errors.New("unknown store format")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store: closed")
	// ErrMemoryFull: the server has reached its maxmemory. Who signs or enrols gets
	// it, and nothing was changed; kills, heartbeats and what ends somebody's access
	// still work, on what memory is left beyond it. Answer 503.
	ErrMemoryFull = errors.New("the server's memory is full: raise its maxmemory, on a machine that has it")
	// ErrLogin: the server does not take the user and password that it was given.
	ErrLogin = errors.New("the server refuses the login: see store.redis.username and store.redis.passwordFile")
	// ErrForbidden: the user may not do what a signer does.
	ErrForbidden = errors.New("the user store.redis.username may not do this: give it the rule that `signer redis acl` prints")
	// ErrBusy: too many calls wait for the server. Answer 503.
	ErrBusy = errors.New("store: too many calls are waiting")
)

// notOurs is why a store is not the deployment's, a killswitch.ErrUnknownStore.
type notOurs string

func (e notOurs) Error() string { return string(e) }

// Is says so to errors.Is.
func (notOurs) Is(target error) bool { return target == killswitch.ErrUnknownStore }

// ErrNotAcknowledged: a change stands on the master, and fewer copies than asked
// for have confirmed it in time. The result that comes with it is valid.
var ErrNotAcknowledged = fmt.Errorf("store: %w", killswitch.ErrUnacknowledged)

// timeouts are those of one call to the server, which its context bounds too.
type timeouts struct {
	net  time.Duration // to connect, to write, to read
	call time.Duration // for a call with its connection
	ack  time.Duration // for copies to acknowledge
}

var defaultTimeouts = timeouts{net: time.Second, call: 2 * time.Second, ack: 500 * time.Millisecond}

// Store is a store in Redis. Safe for concurrent use.
type Store struct {
	opts    *Options             // without the passwords
	single  *redis.Client        // standalone and sentinel: the master
	cluster *redis.ClusterClient // cluster
	log     *slog.Logger
	expect  atomic.Pointer[string] // see Expect
	lanes   lanes                  // see lanes.go
	links   links                  // see links.go
	audits  *auditQueue            // see audit.go
	sw      watcher                // see switch.go

	registry registryRevision   // see audiences.go
	counting singleflight.Group // see enroll.go
}

// Open returns a store. It needs no server: calls fail until there is one.
func Open(o Options) (*Store, error) {
	o = o.orDefaults()
	if len(o.Addrs) == 0 {
		return nil, errors.New("store: redis needs at least one address")
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		return nil, errors.New("store: redis: prefix must not have braces, which choose the slot")
	}
	redis.SetLogger(debugLog{o.Log}) // one for the process: every store's calls return their errors
	s := &Store{opts: &o, log: o.Log, audits: newAuditQueue()}
	none := ""
	s.expect.Store(&none)
	wait := o.timeouts.net
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch o.Mode {
	case Standalone:
		if len(o.Addrs) != 1 {
			return nil, errors.New("store: redis standalone takes one address")
		}
		s.single = redis.NewClient(&redis.Options{
			Addr: o.Addrs[0], Username: o.Username, Password: o.Password, CredentialsProviderContext: o.Credentials, OnConnect: loggedIn, Dialer: dialer(o.TLS, wait), TLSConfig: o.TLS,
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: off,
			MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			DialTimeout: wait, ReadTimeout: wait, WriteTimeout: wait, PoolTimeout: wait,
			PoolSize: poolSize,
		})
	case Sentinel:
		if o.MasterName == "" {
			return nil, errors.New("store: redis with sentinels needs the master's name")
		}
		s.single = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: o.MasterName, SentinelAddrs: o.Addrs,
			SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
			Username: o.Username, Password: o.Password, CredentialsProviderContext: o.Credentials, OnConnect: loggedIn, Dialer: dialer(o.TLS, wait), TLSConfig: o.TLS,
			Protocol: 2, DisableIdentity: true,
			MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			DialTimeout: wait, ReadTimeout: wait, WriteTimeout: wait, PoolTimeout: wait,
			PoolSize: poolSize,
		})
	case Cluster:
		s.cluster = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: o.Addrs, Username: o.Username, Password: o.Password, CredentialsProviderContext: o.Credentials, OnConnect: loggedIn, Dialer: dialer(o.TLS, wait), TLSConfig: o.TLS,
			Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: off,
			MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			DialTimeout: wait, ReadTimeout: wait, WriteTimeout: wait, PoolTimeout: wait,
			PoolSize: poolSize, ClusterStateReloadInterval: 5 * time.Second,
		})
	default:
		return nil, fmt.Errorf("store: redis: unknown mode %q (standalone, sentinel or cluster)", o.Mode)
	}
	if s.single != nil {
		s.single.AddHook(&s.links)
	}
	s.opts.Password, s.opts.SentinelPassword = "", "" // the clients have them
	s.lanes.start(s)
	s.watch()
	return s, nil
}

// loggedIn ends a new connection whose server wants a login that it did not get. The
// client goes on without one; a long command would then be cut off, by a server that
// takes only short ones from strangers, often before it can be read why. HELLO is the
// command that needs no permission and says so.
func loggedIn(ctx context.Context, c *redis.Conn) error {
	err := c.Do(ctx, "HELLO").Err()
	if isReply(err) && !strings.HasPrefix(err.Error(), "NOAUTH") {
		return nil
	}
	return err
}

// debugLog takes what the client library says about connections.
type debugLog struct{ to *slog.Logger }

func (l debugLog) Printf(ctx context.Context, format string, args ...any) {
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.DebugContext(ctx, fmt.Sprintf(format, args...))
	}
}

// Format names the place, for every verb.
func (s *Store) Format(f fmt.State, _ rune) { io.WriteString(f, s.opts.String()) }

// poolSize is how many connections there are to one server. The calls of signs
// share a few of them; the others are for acts and lists.
const poolSize = 16

// Close ends all connections. Calls that wait fail.
func (s *Store) Close() error {
	s.lanes.stop()
	s.unwatch()
	if s.cluster != nil {
		return s.cluster.Close()
	}
	return s.single.Close()
}

// globalSlot holds what there is one of per deployment.
const globalSlot = "g"

// tags is how many slots records hash to.
const tags = 256

// tagNames are the names of the tags' slots: b00 to bff.
var tagNames = func() (names [tags]string) {
	for i := range names {
		names[i] = "b" + hex.EncodeToString([]byte{byte(i)})
	}
	return names
}()

// tagOf is the slot of a record of an issuer: of a device by its thumbprint, of a
// credential by its secret's hash.
func tagOf(issuer, id string) string { return tagNames[placeOf(issuer, id)[0]] }

// placeOf hashes an issuer, which is a URL and holds no NUL, and an id.
func placeOf(issuer, id string) [sha256.Size]byte {
	var room [256]byte
	b := append(room[:0], issuer...)
	b = append(b, 0)
	return sha256.Sum256(append(b, id...))
}

// shortIssuer stands for an issuer in keys: 96 bits in shortIssuerLen characters, for
// which nobody finds another issuer that has the same.
func shortIssuer(issuer string) string {
	sum := sha256.Sum256([]byte(issuer))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

const shortIssuerLen = 16

// key is the key of name in a slot.
func (s *Store) key(slot, name string) string { return s.opts.Prefix + ":{" + slot + "}:" + name }

// namesKey is where the names of the issuers are that have records in a slot, by
// what stands for them in keys.
func (s *Store) namesKey(slot string) string { return s.key(slot, "n") }

// markerKey is where a slot's marker is.
func (s *Store) markerKey(slot string) string { return s.key(slot, "m") }

// node returns the server that writes a slot.
func (s *Store) node(ctx context.Context, slot string) (*redis.Client, error) {
	if s.cluster == nil {
		return s.single, nil
	}
	n, err := s.cluster.MasterForKey(ctx, s.markerKey(slot))
	if isReply(err) { // of a node that was asked who has which slots
		return nil, mapped(err)
	}
	if err != nil {
		return nil, fmt.Errorf("store: redis cluster: %w", err)
	}
	return n, nil
}
