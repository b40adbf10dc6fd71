package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// A caller that leaves ends its operation, and hears no more of it: on gRPC nothing
// can be sent to who cancelled. How it ended counts all the same: what was sent is
// sent. So a client gives an operation an id of its own (operationKey), and one that
// left asks by it (outcomeKey), with the same method and request. That begins nothing:
// it waits for the operation's end, and is told its result alone; of one that goes on
// without its caller, that its outcome is not known yet.
const (
	operationKey = "pact-operation"
	outcomeKey   = "pact-outcome"
)

// How long an outcome can be asked for, how many of them each token has, and the owner
// on their socket, and how long an id may be. What is under way is remembered however
// many there are: maxCalls bounds those of a token.
const (
	outcomeLife    = time.Minute
	maxOutcomes    = 100
	maxOperationID = 100 // characters
)

// outcomes are the operations under way that have an id, and how others ended.
type outcomes struct {
	now func() time.Time

	mu   sync.Mutex
	all  map[string]*outcome
	keys map[string][]string // of all, oldest first, by the caller's token
}

type outcome struct {
	asks    [sha256.Size]byte        // its method and request
	alone   chan struct{}            // it goes on without who asked for it
	interim *agentv1.OperationUpdate // what is told of it then; after alone

	done chan struct{}
	// After done:
	result *agentv1.OperationUpdate // nil: it ended with an error
	err    error
	ended  time.Time
}

func newOutcomes(now func() time.Time) *outcomes {
	return &outcomes{now: now, all: map[string]*outcome{}, keys: map[string][]string{}}
}

// serve answers one call of a method that streams operation updates: run is the
// operation, and tells them. Ids are the caller's own.
func (o *outcomes) serve(ctx context.Context, who caller, req proto.Message, send func(*agentv1.OperationUpdate) error,
	run func(context.Context, teller) error,
) error {
	id, err := operationID(ctx, operationKey)
	if err != nil {
		return err
	}
	asked, err := operationID(ctx, outcomeKey)
	switch {
	case err != nil:
		return err
	case id != "" && asked != "":
		return invalid(outcomeKey, "goes with no %s", operationKey)
	case id == "" && asked == "":
		return run(ctx, teller{send: send})
	}
	asks, err := fingerprint(req)
	if err != nil {
		return err
	}
	if asked != "" {
		return o.tell(ctx, who.name()+"\x00"+asked, asks, send)
	}
	x, ended, err := o.begin(who.token, who.name()+"\x00"+id, asks)
	if err != nil {
		return err
	}
	var result *agentv1.OperationUpdate
	err = statusOf(codes.Internal, codeInternal, nil, "the operation failed: the agent's log says why") // if run panics
	defer func() { ended(result, err) }()
	err = run(ctx, teller{
		send: func(u *agentv1.OperationUpdate) error {
			if u.GetResult() != nil {
				result = u
			}
			return send(u)
		},
		goesOn: func(u *agentv1.OperationUpdate) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if x.interim == nil {
				x.interim = u
				close(x.alone)
			}
		},
	})
	return err
}

// fingerprint is of what a request asks for. Each method has a request of its own.
func fingerprint(req proto.Message) (sum [sha256.Size]byte, err error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return sum, err
	}
	return sha256.Sum256(append([]byte(req.ProtoReflect().Descriptor().FullName()+"\n"), body...)), nil
}

// begin remembers an operation of a token's; ended is called with how it ended.
func (o *outcomes) begin(token, key string, asks [sha256.Size]byte) (x *outcome, ended func(*agentv1.OperationUpdate, error), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[key] != nil {
		return nil, nil, invalid(operationKey, "is that of another operation")
	}
	o.forget(token)
	x = &outcome{asks: asks, alone: make(chan struct{}), done: make(chan struct{})}
	o.all[key] = x
	o.keys[token] = append(o.keys[token], key)
	return x, func(result *agentv1.OperationUpdate, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		x.result, x.err, x.ended = result, err, o.now()
		close(x.done)
		time.AfterFunc(outcomeLife+time.Second, func() { // nobody may begin another one
			o.mu.Lock()
			defer o.mu.Unlock()
			o.forget(token)
		})
	}, nil
}

// forget drops what nobody asks for any more, and if the token has too many what ended
// first of its own.
func (o *outcomes) forget(token string) {
	for t, keys := range o.keys {
		tooMany := t == token && len(keys) >= maxOutcomes
		kept := keys[:0]
		for _, key := range keys {
			x := o.all[key]
			if !x.ended.IsZero() && (tooMany || o.now().Sub(x.ended) > outcomeLife) {
				delete(o.all, key)
				tooMany = false
				continue
			}
			kept = append(kept, key)
		}
		if o.keys[t] = kept; len(kept) == 0 {
			delete(o.keys, t)
		}
	}
}

// tell waits for the end of an operation and sends its result.
func (o *outcomes) tell(ctx context.Context, key string, asks [sha256.Size]byte, send func(*agentv1.OperationUpdate) error) error {
	o.mu.Lock()
	x := o.all[key]
	o.mu.Unlock()
	switch {
	case x == nil:
		return statusOf(codes.NotFound, codeNotFound, map[string]string{"field": outcomeKey}, "no operation of that id was begun, or its outcome is not remembered any more")
	case x.asks != asks:
		return invalid(outcomeKey, "is that of an operation of another method or request")
	}
	select {
	case <-x.done:
	case <-x.alone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-x.done:
	default:
		return send(x.interim)
	}
	if x.result == nil {
		return x.err
	}
	return send(x.result)
}

// operationID reads one of the two keys.
func operationID(ctx context.Context, key string) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		return "", nil
	}
	bad := len(values) > 1 || values[0] == "" || len(values[0]) > maxOperationID
	for _, c := range []byte(values[0]) {
		bad = bad || c <= ' ' || c > '~'
	}
	if bad {
		return "", statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": key},
			fmt.Sprintf("%s: must be one id of 1 to %d printable characters", key, maxOperationID))
	}
	return values[0], nil
}
