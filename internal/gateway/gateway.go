// Package gateway serves a gRPC service as REST in the same process. Each request
// becomes a call through the interceptors that a call over gRPC passes, so both
// faces refuse the same requests for the same reasons. It is stricter than
// grpc-gateway is by itself: what would be ignored is refused.
package gateway

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Service is a gRPC service of this process, behind its interceptors. All fields are
// required.
type Service struct {
	Desc   *grpc.ServiceDesc
	Impl   any // what implements it
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Invalid is the service's refusal of a request for one field of it.
	Invalid func(field, format string, args ...any) error
}

// Conn is a connection to the service without a network: for calls with one request,
// and one answer or a stream of them. vouch, unless nil, adds to the context of each
// call what this process itself says of its caller.
func (s *Service) Conn(vouch func(context.Context) context.Context) grpc.ClientConnInterface {
	return &conn{s, vouch}
}

type conn struct {
	*Service
	vouch func(context.Context) context.Context
}

// incoming turns the metadata that a client sends into what a service receives.
func (c *conn) incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	ctx = metadata.NewIncomingContext(ctx, md)
	if c.vouch != nil {
		ctx = c.vouch(ctx)
	}
	return ctx
}

// Invoke implements [grpc.ClientConnInterface].
func (c *conn) Invoke(ctx context.Context, fullMethod string, args, reply any, opts ...grpc.CallOption) error {
	if err := c.checkRequest(ctx, args.(proto.Message)); err != nil {
		return err
	}
	headers := &headers{method: fullMethod}
	ctx = grpc.NewContextWithServerTransportStream(ctx, headers)
	for _, o := range opts {
		if h, ok := o.(grpc.HeaderCallOption); ok {
			defer func() { *h.HeaderAddr = headers.md }()
		}
	}
	i := slices.IndexFunc(c.Desc.Methods, func(m grpc.MethodDesc) bool { return "/"+c.Desc.ServiceName+"/"+m.MethodName == fullMethod })
	if i < 0 {
		return status.Errorf(codes.Unimplemented, "no method %s", fullMethod)
	}
	resp, err := c.Desc.Methods[i].Handler(c.Impl, c.incoming(ctx), func(v any) error {
		proto.Merge(v.(proto.Message), args.(proto.Message))
		return nil
	}, c.Unary)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), resp.(proto.Message))
	return nil
}

// NewStream implements [grpc.ClientConnInterface] for streams of answers.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, fullMethod string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	i := slices.IndexFunc(c.Desc.Streams, func(s grpc.StreamDesc) bool { return s.StreamName == desc.StreamName })
	if i < 0 {
		return nil, status.Errorf(codes.Unimplemented, "no method %s", fullMethod)
	}
	return &pipe{
		ctx: c.incoming(ctx), answers: make(chan proto.Message),
		check: func(m proto.Message) error { return c.checkRequest(ctx, m) },
		serve: func(p *pipe) error {
			return c.Stream(c.Impl, &pipeServer{p}, &grpc.StreamServerInfo{FullMethod: fullMethod, IsServerStream: true}, c.Desc.Streams[i].Handler)
		},
	}, nil
}

// headers collects what a service sets as headers of one answer.
type headers struct {
	method string
	md     metadata.MD
}

// Method implements [grpc.ServerTransportStream].
func (h *headers) Method() string { return h.method }

// SetHeader implements [grpc.ServerTransportStream].
func (h *headers) SetHeader(md metadata.MD) error {
	h.md = metadata.Join(h.md, md)
	return nil
}

// SendHeader implements [grpc.ServerTransportStream].
func (h *headers) SendHeader(md metadata.MD) error { return h.SetHeader(md) }

// SetTrailer implements [grpc.ServerTransportStream].
func (h *headers) SetTrailer(metadata.MD) error { return nil }

// ServerStream is a stream with another context, each of whose requests is looked at
// before the service gets it.
type ServerStream struct {
	grpc.ServerStream
	Ctx   context.Context
	Check func(request proto.Message) error
}

// Context implements [grpc.ServerStream].
func (s *ServerStream) Context() context.Context { return s.Ctx }

// RecvMsg implements [grpc.ServerStream].
func (s *ServerStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.Check(m.(proto.Message))
}

// Unknown finds a message, m or one within it, that has fields which this program
// does not know; nil if there is none. A caller must not believe that they were
// heeded. Maps are not looked into.
func Unknown(m protoreflect.Message) (found protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		return m
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := 0; i < v.List().Len() && found == nil; i++ {
				found = Unknown(v.List().Get(i).Message())
			}
		default:
			found = Unknown(v.Message())
		}
		return found == nil
	})
	return found
}

// Shorten keeps a refused value from filling a message: at most n bytes of it.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 { // not within a character
		n--
	}
	return s[:n] + "…"
}
