package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pactsigner/pactsigner/internal/bubble"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// barriers is a stream of them, each that long after the one before.
type barriers struct {
	next  []*signerv1.Barrier
	after time.Duration
}

func (b *barriers) Recv() (*signerv1.Barrier, error) {
	time.Sleep(b.after)
	if len(b.next) == 0 {
		return nil, io.EOF
	}
	first := b.next[0]
	b.next = b.next[1:]
	return first, nil
}

// Three replicas, of which one is silent: each is told as it confirms, and on a
// terminal a line says who is waited for, and for how long still.
func TestKillWithASilentReplica(t *testing.T) {
	for _, width := range []int{0, 60} {
		bubble.Test(t, func(t *testing.T) {
			var g glass
			a := &app{stdout: &g, stderr: &g, now: time.Now, zone: time.UTC, redraw: width}
			at := timestamppb.New(time.Now().Add(3400 * time.Millisecond))
			step := func(effective bool, confirmed, silent string) *signerv1.Barrier {
				return &signerv1.Barrier{Epoch: 7, Effective: effective, EffectiveAt: at, Confirmed: strings.Fields(confirmed), Silent: strings.Fields(silent)}
			}
			stream := &barriers{after: time.Second, next: []*signerv1.Barrier{
				step(false, "", "r1 r2 r3"), step(false, "r3", "r1 r2"), step(false, "r1 r3", "r2"), step(true, "r1 r3", "r2"),
			}}
			const lines = "  replica r3 confirmed (1 of 3)\n  replica r1 confirmed (2 of 3)\n"
			done, began := make(chan error), time.Now()
			go func() {
				last, past, err := followBarrier(a, stream, true)
				if err == nil && (past || !last.Effective) {
					err = errors.New("it ended before it was effective")
				}
				done <- err
			}()
			for _, want := range []struct {
				after time.Duration
				text  string
			}{
				{1500 * time.Millisecond, "Waiting for r1, r2, r3, 00:02 left"},
				{2500 * time.Millisecond, "Waiting for r1, r2, 00:01 left"},
				{3300 * time.Millisecond, "Waiting for r2, 00:01 left"},
				{3900 * time.Millisecond, "Waiting until the store enforces it everywhere"},
			} {
				time.Sleep(want.after - time.Since(began))
				synctest.Wait()
				got := g.String()
				if has := strings.HasSuffix(got, want.text); has != (width > 0) {
					t.Errorf("width %d, after %v: %q", width, want.after, got)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := g.String(); got != lines {
				t.Errorf("width %d: in the end there stands %q", width, got)
			}
		})
	}
}

// A stream that breaks off says how to go on.
func TestKillStreamBreaksOff(t *testing.T) {
	var g glass
	a := &app{stdout: &g, stderr: &g, now: time.Now, zone: time.UTC}
	_, _, err := followBarrier(a, &barriers{next: []*signerv1.Barrier{{Epoch: 7, Silent: []string{"r1"}}}}, true)
	if err == nil || !strings.Contains(err.Error(), "before the switch was effective") {
		t.Fatalf("got %v", err)
	}
	// A store that cannot be told of it is waited for, and that is said.
	var broken glass
	a = &app{stdout: &broken, stderr: &broken, now: time.Now, zone: time.UTC}
	stream := &barriers{next: []*signerv1.Barrier{{Epoch: 7, Silent: []string{"r1"}, EffectiveAt: timestamppb.New(time.Now().Add(-time.Second))}, {Epoch: 7, Effective: true}}}
	if _, _, err := followBarrier(a, stream, true); err != nil || broken.String() != "Waiting until the store enforces it everywhere.\n" {
		t.Fatalf("%v, and there stands %q", err, broken.String())
	}
	var second glass
	a = &app{stdout: &second, stderr: &second, now: time.Now, zone: time.UTC}
	stream = &barriers{next: []*signerv1.Barrier{{Epoch: 7, Silent: []string{"r1"}, Unsettled: "shard b17 does not answer"}, {Epoch: 7, Effective: true}}}
	if _, _, err := followBarrier(a, stream, true); err != nil || second.String() != "Waiting: shard b17 does not answer.\n" {
		t.Fatalf("%v, and there stands %q", err, second.String())
	}
}
