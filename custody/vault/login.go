package vault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/pactsigner/pactsigner/custody"
)

// Methods of [Auth].
const (
	methodToken      = "token"
	methodAppRole    = "approle"
	methodKubernetes = "kubernetes"
)

const (
	// kubernetesJWT is where Kubernetes mounts a pod's service account token.
	kubernetesJWT = "/var/run/secrets/kubernetes.io/serviceaccount/token"

	// watchFiles is how often a credential's file is looked at for a new one.
	watchFiles = 2 * time.Second

	// The pause between failed logins grows from the first to the longest. After a
	// refusal it grows further: Vault locks a role that is tried too often with a
	// wrong secret, for all replicas at once.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
	refusedPause = time.Minute

	// firstForced is the pause after a login that a 403 asked for. It doubles while
	// 403s go on, so that a policy that forbids one call is not a login per call.
	firstForced = time.Second

	// shortestLease keeps the last seconds of a dying token from becoming a loop.
	shortestLease = time.Second
)

// login keeps this process logged in. It renews the token at two thirds of its
// life and logs in anew when renewals fail, when they no longer give a whole lease
// (the token's end is near, however many of them succeed until then), when the
// credential's file changes, and when Vault answers 403. One goroutine does all
// of it, so that there is never more than one attempt at a time.
type login struct {
	auth Auth
	log  *slog.Logger
	send func(ctx context.Context, method, path, token string, body []byte) ([]byte, error)

	stop   context.CancelFunc
	done   chan struct{}
	demand chan struct{} // holds one: log in anew

	mu         sync.Mutex
	now        session
	err        error         // of the last attempt
	ended      chan struct{} // closed when the attempt that is due or under way ends; nil: none
	forced     time.Time     // when a 403 last asked for a login
	pause      time.Duration // and how long it is, about, until the next may
	mayForceAt time.Time

	tried [sha256.Size]byte // hash of the credential of the last attempt; the goroutine's own
}

// session is a login that succeeded.
type session struct {
	number    uint64 // 1, 2, …; 0: none yet
	token     string
	at        time.Time
	lease     time.Duration // a whole one; 0: for ever
	renewable bool
	expires   time.Time // zero: never
	uses      int       // how many calls it was good for from the start; 0: no limit
}

// String keeps the token out of whatever prints a session.
func (s session) String() string { return fmt.Sprintf("login %d", s.number) }

// GoString is as [session.String].
func (s session) GoString() string { return s.String() }

// limited says what is wrong with a login that ends after some calls.
func limited(uses int) string {
	return fmt.Sprintf("this login is good for %d calls and no more: make tokens without a limit of uses (token_num_uses=0)", uses)
}

func (s session) alive(now time.Time) bool {
	return s.number > 0 && (s.expires.IsZero() || now.Before(s.expires))
}

func newLogin(auth Auth, log *slog.Logger, send func(context.Context, string, string, string, []byte) ([]byte, error)) (*login, error) {
	switch {
	case auth.Method == methodToken && auth.TokenFile == "":
		return nil, errors.New("custody/vault: auth method token needs a token file")
	case auth.Method == methodAppRole && auth.RoleIDFile == "":
		return nil, errors.New("custody/vault: auth method approle needs a role id file")
	case auth.Method == methodKubernetes && auth.Role == "":
		return nil, errors.New("custody/vault: auth method kubernetes needs a role")
	case auth.Method != methodToken && auth.Method != methodAppRole && auth.Method != methodKubernetes:
		return nil, fmt.Errorf("custody/vault: auth method %q is none of token, approle, kubernetes", auth.Method)
	}
	if auth.Mount == "" {
		auth.Mount = auth.Method
	}
	if auth.JWTFile == "" {
		auth.JWTFile = kubernetesJWT
	}
	return &login{auth: auth, log: log, send: send, done: make(chan struct{}), demand: make(chan struct{}, 1)}, nil
}

func (l *login) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.ended = make(chan struct{}) // the first calls wait for the first attempt
	go l.run(ctx)
}

func (l *login) close() {
	l.stop()
	<-l.done
}

// state returns the session and, if it is of no use, why.
func (l *login) state() (session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now.alive(time.Now()) {
		return l.now, nil
	}
	if l.err != nil {
		return l.now, l.err
	}
	return l.now, fmt.Errorf("%w: not logged in to Vault", custody.ErrUnavailable)
}

// session returns the session to call with. It waits for an attempt that is under
// way, not for one that may follow.
func (l *login) session(ctx context.Context) (session, error) {
	for {
		l.mu.Lock()
		ended := l.ended
		l.mu.Unlock()
		if s, err := l.state(); err == nil || ended == nil {
			return s, err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return session{}, fmt.Errorf("%w: still logging in to Vault", custody.ErrUnavailable)
		}
	}
}

// again returns a newer session than one that Vault refused. It asks for a login
// unless a 403 has just done so, and waits for it.
func (l *login) again(ctx context.Context, refused session) (session, error) {
	l.mu.Lock()
	current, now := l.now, time.Now()
	if current.number == refused.number && l.ended == nil {
		if now.Before(l.mayForceAt) {
			l.mu.Unlock()
			return session{}, fmt.Errorf("%w: logged in to Vault just now", custody.ErrUnavailable)
		}
		l.pause = min(2*l.pause, refusedPause)
		if now.Sub(l.forced) > 2*refusedPause {
			l.pause = firstForced
		}
		l.forced, l.mayForceAt = now, now.Add(jitter(l.pause))
		l.ended = make(chan struct{})
		l.demand <- struct{}{} // empty: it is filled only here, once per attempt
	}
	ended := l.ended
	l.mu.Unlock()
	if current.number != refused.number {
		return l.state()
	}
	select {
	case <-ended:
	case <-l.done:
	case <-ctx.Done():
		return session{}, fmt.Errorf("%w: still logging in to Vault", custody.ErrUnavailable)
	}
	s, err := l.state()
	if err == nil && s.number == refused.number {
		err = fmt.Errorf("%w: Vault refused a new login", custody.ErrUnavailable)
	}
	return s, err
}

// run logs in, keeps the session, and starts over.
func (l *login) run(ctx context.Context) {
	defer close(l.done)
	failures := 0
	for ctx.Err() == nil {
		err := l.attempt(ctx)
		if err == nil {
			failures = 0
			l.keep(ctx, 0)
			continue
		}
		longest := longestPause
		if refusal(err) {
			longest = refusedPause
		}
		l.keep(ctx, jitter(min(firstPause<<min(failures, 16), longest)))
		failures++
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.err = session{}, fmt.Errorf("%w: closed", custody.ErrUnavailable)
	if l.ended != nil {
		close(l.ended)
		l.ended = nil
	}
}

// attempt logs in once and lets the calls that wait for it go on.
func (l *login) attempt(ctx context.Context) error {
	l.mu.Lock()
	if l.ended == nil {
		l.ended = make(chan struct{})
	}
	l.mu.Unlock()

	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := l.logIn(bounded)

	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.demand: // this was it
	default:
	}
	switch {
	case err == nil:
		s.number = l.now.number + 1
		l.now = s
		l.log.InfoContext(ctx, "logged in to Vault", "method", l.auth.Method, "lease", s.lease.String(), "renewable", s.renewable)
		if s.uses > 0 {
			l.log.ErrorContext(ctx, "Vault will refuse calls soon: "+limited(s.uses), "method", l.auth.Method)
		}
	case l.err == nil || l.err.Error() != err.Error():
		l.log.WarnContext(ctx, "no login to Vault", "method", l.auth.Method, "error", err)
	}
	l.err = err
	close(l.ended)
	l.ended = nil
	return err
}

// keep renews the session until it is time to log in: after retry, if that is not
// zero, because the last attempt failed.
func (l *login) keep(ctx context.Context, retry time.Duration) {
	watch := time.NewTicker(watchFiles)
	defer watch.Stop()
	var again <-chan time.Time
	if retry > 0 {
		timer := time.NewTimer(retry)
		defer timer.Stop()
		again = timer.C
	}
	pause := firstPause
	due, stop := l.due(retry > 0)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.demand:
			return
		case <-again:
			return
		case <-watch.C:
			// The others take a new credential at the next login, which comes anyway.
			if (l.auth.Method == methodToken || retry > 0) && l.changed() {
				return
			}
		case <-due:
			s, _ := l.state()
			if !s.renewable || !s.alive(time.Now()) {
				return
			}
			renewed, err := l.renew(ctx, s)
			switch {
			case err == nil && renewed < s.lease*3/4, err != nil && refusal(err):
				return
			case err == nil:
				pause = firstPause
				stop()
				due, stop = l.due(retry > 0)
			default: // Vault is away; a login would not do better
				timer := time.NewTimer(min(jitter(pause), max(time.Until(s.expires), 0)))
				pause = min(2*pause, longestPause)
				stop()
				due, stop = timer.C, timer.Stop
			}
		}
	}
}

// due fires when the session should be renewed or replaced: after about two thirds
// of what is left of it.
func (l *login) due(failing bool) (<-chan time.Time, func() bool) {
	s, err := l.state()
	if err != nil || s.expires.IsZero() || failing && !s.renewable {
		return nil, func() bool { return false }
	}
	left := max(time.Until(s.expires), shortestLease)
	timer := time.NewTimer(time.Duration(float64(left) * (0.6 + rand.Float64()/10)))
	return timer.C, timer.Stop
}

// refusal reports whether Vault understood and said no.
func refusal(err error) bool {
	s := status(err)
	return s >= 400 && s < 500 && s != http.StatusTooManyRequests || errors.Is(err, errCredential)
}

// jitter returns between a half and the whole of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// logIn obtains a session.
func (l *login) logIn(ctx context.Context) (session, error) {
	credential, err := l.credential()
	if err != nil {
		return session{}, fmt.Errorf("%w: %w", custody.ErrUnavailable, err)
	}
	l.tried = hash(credential)
	if l.auth.Method == methodToken {
		return l.lookUp(ctx, credential["token"])
	}
	at := time.Now()
	answer, err := l.post(ctx, "auth/"+l.auth.Mount+"/login", "", credential)
	if err != nil {
		return session{}, err
	}
	return session{
		token: answer.Auth.ClientToken, at: at, lease: answer.lease(), renewable: answer.Auth.Renewable, expires: answer.expires(at),
		uses: answer.Auth.Uses,
	}, nil
}

// lookUp makes a session of a token that somebody else obtained.
func (l *login) lookUp(ctx context.Context, token string) (session, error) {
	at := time.Now()
	raw, err := l.send(ctx, http.MethodGet, "auth/token/lookup-self", token, nil)
	if err != nil {
		return session{}, loginError(err)
	}
	var answer struct {
		Data struct {
			TTL       int64 `json:"ttl"`
			Whole     int64 `json:"creation_ttl"`
			Renewable bool  `json:"renewable"`
			Uses      int   `json:"num_uses"` // left
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return session{}, fmt.Errorf("%w: logging in to Vault: its answer is not one", custody.ErrUnavailable)
	}
	s := session{token: token, at: at, lease: time.Duration(answer.Data.Whole) * time.Second, renewable: answer.Data.Renewable, uses: answer.Data.Uses}
	if answer.Data.TTL > 0 {
		s.expires = at.Add(time.Duration(answer.Data.TTL) * time.Second)
	}
	return s, nil
}

// renew renews the session and returns how long it now lasts.
func (l *login) renew(ctx context.Context, s session) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := time.Now()
	answer, err := l.post(ctx, "auth/token/renew-self", s.token, map[string]string{})
	if err != nil {
		l.log.WarnContext(ctx, "the login to Vault was not renewed", "expires", s.expires, "error", err)
		return 0, err
	}
	if answer.lease() <= 0 { // less than a second is left; it does not mean for ever
		return 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.expires, l.now.renewable = answer.expires(at), answer.Auth.Renewable
	return answer.lease(), nil
}

// authAnswer is what Vault says to a login and to a renewal.
type authAnswer struct {
	Auth struct {
		ClientToken   string `json:"client_token"`
		LeaseDuration int64  `json:"lease_duration"`
		Renewable     bool   `json:"renewable"`
		Uses          int    `json:"num_uses"`
	} `json:"auth"`
}

func (a authAnswer) lease() time.Duration { return time.Duration(a.Auth.LeaseDuration) * time.Second }

func (a authAnswer) expires(asked time.Time) time.Time {
	if a.Auth.LeaseDuration <= 0 {
		return time.Time{}
	}
	return asked.Add(a.lease())
}

func (l *login) post(ctx context.Context, path, token string, body map[string]string) (authAnswer, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return authAnswer{}, err
	}
	raw, err := l.send(ctx, http.MethodPost, path, token, encoded)
	if err != nil {
		return authAnswer{}, loginError(err)
	}
	var answer authAnswer
	// The decoder's error would quote what it read.
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Auth.ClientToken == "" {
		return authAnswer{}, fmt.Errorf("%w: logging in to Vault: its answer has no token", custody.ErrUnavailable)
	}
	return answer, nil
}

// loginError makes every failed login an unavailable custody: a wrong role is not
// the fault of the call that waited for it.
func loginError(err error) error {
	var e *callError
	if errors.As(err, &e) {
		failed := *e
		failed.kind = custody.ErrUnavailable
		return fmt.Errorf("logging in to Vault: %w", &failed)
	}
	return fmt.Errorf("%w: logging in to Vault: %w", custody.ErrUnavailable, err)
}

// errCredential: the credential's file is of no use.
var errCredential = errors.New("custody/vault: no credential")

// credential reads the files of the method.
func (l *login) credential() (map[string]string, error) {
	files := map[string]string{}
	switch l.auth.Method {
	case methodToken:
		files["token"] = l.auth.TokenFile
	case methodAppRole:
		files["role_id"] = l.auth.RoleIDFile
		if l.auth.SecretIDFile != "" { // a role may be bound to addresses instead
			files["secret_id"] = l.auth.SecretIDFile
		}
	case methodKubernetes:
		files["jwt"] = l.auth.JWTFile
	}
	credential := map[string]string{}
	for field, file := range files {
		secret, err := readSecret(file)
		if err != nil {
			return nil, err
		}
		credential[field] = secret
	}
	if l.auth.Method == methodKubernetes {
		credential["role"] = l.auth.Role
	}
	return credential, nil
}

func readSecret(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errCredential, err)
	}
	secret := string(bytes.TrimSpace(data))
	if secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", fmt.Errorf("%w: %s does not hold one", errCredential, file)
	}
	return secret, nil
}

// changed reports whether the credential's files hold another one than the last
// attempt used.
func (l *login) changed() bool {
	credential, err := l.credential()
	return err == nil && hash(credential) != l.tried
}

func hash(credential map[string]string) [sha256.Size]byte {
	encoded, _ := json.Marshal(credential) // sorted by field
	return sha256.Sum256(encoded)
}
