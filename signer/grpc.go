package signer

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// maxMessage is what the transport reads of a gRPC request. It is more than a
// request may have, so that one too large is refused for our reason.
const maxMessage = 32 * maxBody

// ServerOptions are what a grpc.Server needs to serve the contract besides
// Register. more are interceptors that run outside of ours.
func (s *Service) ServerOptions(more ...grpc.UnaryServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append(more, s.intercept)...),
		grpc.StatsHandler(deliveries{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
	}
}

// Register registers the contract. The server must have been made with
// ServerOptions.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	signerv1.RegisterSignerServiceServer(server, s)
}

// codec is protobuf's, but what cannot be decoded as a request of the contract
// comes to the interceptor, which refuses it for our reason. gRPC would answer
// INTERNAL by itself.
type codec struct{ encoding.CodecV2 }

// unreadable is what codec makes of such a request: a field that no version of
// the contract has.
var unreadable = protoreflect.RawFields(protowire.AppendVarint(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), 1))

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if m, ok := v.(proto.Message); ok && err != nil && m.ProtoReflect().Descriptor().ParentFile() == signerv1.File_pact_signer_v1_signer_proto {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(unreadable)
		return nil
	}
	return err
}

// intercept gives the service what it must know of a call, and keeps the answer
// back until the switch allows it.
func (s *Service) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	if info.Server != any(s) {
		return handler(ctx, req)
	}
	defer s.recovered(ctx, func(r *Refusal) { resp, err = nil, r })
	if m, ok := req.(proto.Message); ok {
		if n := proto.Size(m); n > maxBody {
			return nil, invalid(fmt.Sprintf("request: has %d bytes, more than %d", n, maxBody))
		}
		if err := checkKnown(m.ProtoReflect()); err != nil {
			return nil, err
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	i, ok := s.issuerOf(md.Get(":authority"))
	if !ok {
		return nil, invalid("authority: no issuer has this host")
	}
	c := &call{issuer: i, authorization: md.Get("authorization")}
	if p, ok := peer.FromContext(ctx); ok {
		c.address = clientAddress(p.Addr.String(), md.Get("x-forwarded-for"), s.cfg.TrustedProxies)
	}
	resp, err = handler(withCall(ctx, c), req)
	if err != nil {
		return nil, refusalOf(err)
	}
	if c.outgoing == nil {
		return resp, nil
	}
	if r := s.letGo(ctx, c); r != nil {
		return nil, r
	}
	return resp, nil
}

// issuerOf finds the issuer by host. With one issuer every host is right, since
// its gRPC listener need not be where its URL is; ports are not compared.
func (s *Service) issuerOf(authority []string) (*issuer, bool) {
	if len(s.issuers) == 1 {
		return s.issuers[0], true
	}
	if len(authority) != 1 {
		return nil, false
	}
	host := strings.ToLower(authority[0])
	if i, ok := s.byHost[host]; ok {
		return i, true
	}
	name := hostname(host)
	var found *issuer
	for h, i := range s.byHost {
		if hostname(h) != name {
			continue
		}
		if found != nil && found != i {
			return nil, false // two issuers on one host, by port alone
		}
		found = i
	}
	return found, found != nil
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// letGo delivers an answer, as Service.deliver has it: it is under way until the
// transport has it. gRPC hands answers over after the last interceptor has
// returned and tells only its stats handler when that is done.
func (s *Service) letGo(ctx context.Context, c *call) *Refusal {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return s.failed(ctx, c.outgoing.op, errNoFace)
	}
	passed := make(chan *Refusal, 1)
	go func() {
		if r := s.deliver(ctx, c, func() {
			passed <- nil
			<-d.done
		}); r != nil {
			passed <- r
		}
	}()
	r := <-passed
	if r == nil && c.outgoing.sent != nil {
		c.outgoing.sent()
	}
	return r
}

// delivery is one answer on its way.
type delivery struct {
	done chan struct{} // closed when the transport has it, or never will
}

type deliveryKey struct{}

// deliveries is the stats handler that knows when the transport has an answer.
type deliveries struct{}

// TagRPC implements stats.Handler.
func (deliveries) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, deliveryKey{}, &delivery{done: make(chan struct{})})
}

// HandleRPC implements stats.Handler.
func (deliveries) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
			close(d.done)
		}
	}
}

// TagConn implements stats.Handler.
func (deliveries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (deliveries) HandleConn(context.Context, stats.ConnStats) {}
