package gateway

import (
	"context"
	"errors"
	"io"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

func TestUnknown(t *testing.T) {
	strange := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)
	mark := func(m proto.Message) { m.ProtoReflect().SetUnknown(strange) }
	for name, make := range map[string]func() (whole, strange proto.Message){
		"itself": func() (proto.Message, proto.Message) { m := new(agentv1.Approval); return m, m },
		"in a field": func() (proto.Message, proto.Message) {
			m := &agentv1.Status{Counts: new(agentv1.Counts)}
			return m, m.Counts
		},
		"in a list": func() (proto.Message, proto.Message) {
			m := &agentv1.Approval{Permissions: []*agentv1.Scope{{Id: "a"}, {Id: "b", Cut: new(agentv1.Cut)}}}
			return m, m.Permissions[1].Cut
		},
	} {
		whole, within := make()
		if at := Unknown(whole.ProtoReflect()); at != nil {
			t.Errorf("%s: found %s in what is known", name, at.Descriptor().Name())
		}
		mark(within)
		if at := Unknown(whole.ProtoReflect()); at == nil || at.Interface() != within {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestShorten(t *testing.T) {
	for in, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abcd…", "abcé": "abc…", "日本": "日…", "\x80\x80\x80\x80\x80": "…"} {
		got := Shorten(in, 4)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A stream in this process gives what the service sends, in order, and then how it
// ended; what it refuses before the first answer is told before any answer is begun.
func TestStreamsInProcess(t *testing.T) {
	failed := status.Error(codes.Aborted, "no")
	for name, c := range map[string]struct {
		kinds []string
		err   error
	}{
		"nothing":           {nil, nil},
		"answers":           {[]string{"a", "b", "c"}, nil},
		"a refusal":         {nil, failed},
		"answers, an error": {[]string{"a"}, failed},
	} {
		s := &Service{
			Desc: &agentv1.AgentService_ServiceDesc,
			Stream: func(_ any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) error {
				if err := ss.RecvMsg(new(agentv1.WatchEventsRequest)); err != nil {
					return err
				}
				for _, kind := range c.kinds {
					if err := ss.SendMsg(&agentv1.ChangeEvent{Kind: kind}); err != nil {
						return err
					}
				}
				return c.err
			},
		}
		stream, err := agentv1.NewAgentServiceClient(s.Conn(nil)).WatchEvents(t.Context(), new(agentv1.WatchEventsRequest))
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Header()
		if refused := len(c.kinds) == 0; refused != (err != nil) && c.err != nil {
			t.Errorf("%s: before the first answer: %v", name, err)
		}
		var kinds []string
		for err == nil {
			var e *agentv1.ChangeEvent
			if e, err = stream.Recv(); err == nil {
				kinds = append(kinds, e.Kind)
			}
		}
		if len(kinds) != len(c.kinds) || c.err == nil && err != io.EOF || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", name, kinds, err)
		}
	}
}

// A caller that leaves does not keep the service at its stream.
func TestStreamOfWhoLeft(t *testing.T) {
	ended := make(chan error, 1)
	s := &Service{
		Desc: &agentv1.AgentService_ServiceDesc,
		Stream: func(_ any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, _ grpc.StreamHandler) (err error) {
			for err == nil {
				err = ss.SendMsg(new(agentv1.ChangeEvent))
			}
			ended <- err
			return err
		},
	}
	ctx, leave := context.WithCancel(t.Context())
	stream, err := agentv1.NewAgentServiceClient(s.Conn(nil)).WatchEvents(ctx, new(agentv1.WatchEventsRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("it ends with %v", err)
	}
}
