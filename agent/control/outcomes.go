package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// A caller that leaves ends its operation, and hears no more of it: on gRPC nothing
// can be sent to who cancelled. How it ended counts all the same: what was sent is
// sent. So a client gives an operation an id of its own (operationKey), and one that
// left asks by it (outcomeKey), with the same method and request. That begins nothing:
// it waits for the operation's end, and is told its result alone.
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
// operation, and sends them. Ids are the caller's own.
func (o *outcomes) serve(ctx context.Context, who caller, send func(*agentv1.OperationUpdate) error,
	run func(context.Context, func(*agentv1.OperationUpdate) error) error,
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
		return statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": outcomeKey}, outcomeKey+": goes with no "+operationKey)
	case asked != "":
		return o.tell(ctx, who.name()+"\x00"+asked, send)
	case id == "":
		return run(ctx, send)
	}
	ended, err := o.begin(who.token, who.name()+"\x00"+id)
	if err != nil {
		return err
	}
	var result *agentv1.OperationUpdate
	err = statusOf(codes.Internal, codeInternal, nil, "the operation failed: the agent's log says why") // if run panics
	defer func() { ended(result, err) }()
	err = run(ctx, func(u *agentv1.OperationUpdate) error {
		if u.GetResult() != nil {
			result = u
		}
		return send(u)
	})
	return err
}

// begin remembers an operation of a token's; ended is called with how it ended.
func (o *outcomes) begin(token, key string) (ended func(*agentv1.OperationUpdate, error), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all[key] != nil {
		return nil, statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": operationKey}, operationKey+": is that of another operation")
	}
	o.forget(token)
	x := &outcome{done: make(chan struct{})}
	o.all[key] = x
	o.keys[token] = append(o.keys[token], key)
	return func(result *agentv1.OperationUpdate, err error) {
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
func (o *outcomes) tell(ctx context.Context, key string, send func(*agentv1.OperationUpdate) error) error {
	o.mu.Lock()
	x := o.all[key]
	o.mu.Unlock()
	if x == nil {
		return statusOf(codes.NotFound, codeNotFound, map[string]string{"field": outcomeKey}, "no operation of that id was begun, or its outcome is not remembered any more")
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return context.Cause(ctx)
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
