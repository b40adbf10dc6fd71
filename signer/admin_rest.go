package signer

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newREST serves the REST routes of gateway.yaml. Each request becomes a call of
// adminConn, and so passes the same interceptors as on gRPC.
func (a *Admin) newREST() (http.Handler, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, adminJSON{&runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
		}}),
		runtime.WithErrorHandler(adminHTTPError),
		runtime.WithRoutingErrorHandler(adminRoutingError),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(name string) (string, bool) { return name, name == NotDurableHeader }),
		runtime.WithDisablePathLengthFallback(),
	)
	if err := signerv1.RegisterAdminServiceHandlerClient(context.Background(), mux, signerv1.NewAdminServiceClient(&adminConn{a: a})); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		_, out := runtime.MarshalerForRequest(mux, r)
		refuse := func(err error) { adminHTTPError(r.Context(), mux, out, w, r, err) }
		if _, ok := a.authenticate(r.Header.Values("Authorization")); !ok { // before anything is read
			_, err := a.admit(r.Context(), "")
			a.cfg.Observe("", err)
			refuse(err)
			return
		}
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
				refuse(adminInvalid("Content-Type", "must be application/json"))
				return
			}
			if r.URL.RawQuery != "" {
				refuse(adminInvalid("query", "everything belongs in the JSON body"))
				return
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), adminQueryKey{}, r.URL.Query()))
		r.Body = http.MaxBytesReader(w, r.Body, adminMaxBody)
		mux.ServeHTTP(w, r)
	}), nil
}

// adminRoutingError answers where no method is. The gateway would say 501 to a
// wrong HTTP method.
func adminRoutingError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if code != http.StatusMethodNotAllowed {
		runtime.DefaultRoutingErrorHandler(ctx, mux, m, w, r, code)
		return
	}
	runtime.HTTPError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: status.Error(codes.Unimplemented, "this path takes another HTTP method")})
}

// adminHTTPError answers with a google.rpc.Status in JSON. What the gateway refuses
// by itself gets an ErrorInfo too.
func adminHTTPError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	var routed *runtime.HTTPStatusError
	if st, _ := status.FromError(err); len(st.Details()) == 0 && st.Code() == codes.InvalidArgument && !errors.As(err, &routed) {
		err = adminRefuse(codes.InvalidArgument, "INVALID_REQUEST", nil, "%s", st.Message())
	}
	if status.Code(err) == codes.Unauthenticated {
		w = &adminChallenge{w}
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// adminChallenge sets the header that goes with a 401, where the gateway puts its
// message.
type adminChallenge struct{ http.ResponseWriter }

func (c *adminChallenge) WriteHeader(code int) {
	c.Header().Set("WWW-Authenticate", `Bearer realm="admin"`)
	c.ResponseWriter.WriteHeader(code)
}

// adminJSON reads JSON strictly: unknown and repeated members, and anything after
// the value, are refused.
type adminJSON struct{ *runtime.JSONPb }

// Unmarshal implements [runtime.Marshaler].
func (m adminJSON) Unmarshal(data []byte, v any) error {
	msg, ok := v.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	return protojson.Unmarshal(data, msg)
}

// NewDecoder implements [runtime.Marshaler].
func (m adminJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			return adminInvalid("body", "is larger than %d bytes", tooLarge.Limit)
		case err != nil:
			return err
		case len(data) == 0:
			return io.EOF // an empty body is an empty request
		}
		return m.Unmarshal(data, v)
	})
}

type adminQueryKey struct{}

// adminCheckQuery refuses query parameters that the request has no field for, which
// the gateway would ignore.
func adminCheckQuery(ctx context.Context, request any) error {
	query, _ := ctx.Value(adminQueryKey{}).(url.Values)
	fields := request.(proto.Message).ProtoReflect().Descriptor().Fields()
	for name := range query {
		if fields.ByTextName(name) == nil && fields.ByJSONName(name) == nil {
			return adminInvalid("query", "parameter %q is unknown", adminShorten(name, 64))
		}
	}
	return nil
}

// adminConn calls the service in this process, through its interceptors.
type adminConn struct {
	a  *Admin
	as AdminToken // who calls; none: whose token the call carries
}

// Invoke implements [grpc.ClientConnInterface].
func (c *adminConn) Invoke(ctx context.Context, fullMethod string, args, reply any, opts ...grpc.CallOption) error {
	if err := adminCheckQuery(ctx, args); err != nil {
		return err
	}
	headers := &adminHeaders{method: fullMethod}
	ctx = grpc.NewContextWithServerTransportStream(ctx, headers)
	for _, o := range opts {
		if h, ok := o.(grpc.HeaderCallOption); ok {
			defer func() { *h.HeaderAddr = headers.md }()
		}
	}
	desc := &signerv1.AdminService_ServiceDesc
	for _, m := range desc.Methods {
		if "/"+desc.ServiceName+"/"+m.MethodName != fullMethod {
			continue
		}
		resp, err := m.Handler(c.a, c.incoming(ctx), func(v any) error {
			proto.Merge(v.(proto.Message), args.(proto.Message))
			return nil
		}, c.a.unary)
		if err != nil {
			return err
		}
		proto.Merge(reply.(proto.Message), resp.(proto.Message))
		return nil
	}
	return status.Errorf(codes.Unimplemented, "no method %s", fullMethod)
}

// adminHeaders collects what a service sets as headers of one answer.
type adminHeaders struct {
	method string
	md     metadata.MD
}

// Method implements [grpc.ServerTransportStream].
func (h *adminHeaders) Method() string { return h.method }

// SetHeader implements [grpc.ServerTransportStream].
func (h *adminHeaders) SetHeader(md metadata.MD) error {
	h.md = metadata.Join(h.md, md)
	return nil
}

// SendHeader implements [grpc.ServerTransportStream].
func (h *adminHeaders) SendHeader(md metadata.MD) error { return h.SetHeader(md) }

// SetTrailer implements [grpc.ServerTransportStream].
func (h *adminHeaders) SetTrailer(metadata.MD) error { return nil }

// NewStream implements [grpc.ClientConnInterface] for streams of answers.
func (c *adminConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, fullMethod string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	for _, s := range signerv1.AdminService_ServiceDesc.Streams {
		if s.StreamName == desc.StreamName {
			return &adminPipe{
				ctx: c.incoming(ctx), answers: make(chan proto.Message),
				serve: func(p *adminPipe) error {
					return c.a.stream(c.a, &adminPipeServer{p}, &grpc.StreamServerInfo{FullMethod: fullMethod, IsServerStream: true}, s.Handler)
				},
			}, nil
		}
	}
	return nil, status.Errorf(codes.Unimplemented, "no method %s", fullMethod)
}

// adminIncoming turns the metadata that the gateway sends into what a service receives.
func adminIncoming(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

// adminPipe is the client's end of a stream in this process: one request, then
// answers until the service ends.
type adminPipe struct {
	ctx     context.Context
	serve   func(*adminPipe) error
	request proto.Message
	answers chan proto.Message
	err     error // of the service; read after answers is closed
}

func (p *adminPipe) Context() context.Context     { return p.ctx }
func (p *adminPipe) Header() (metadata.MD, error) { return nil, nil }
func (p *adminPipe) Trailer() metadata.MD         { return nil }

func (p *adminPipe) SendMsg(m any) error {
	p.request = m.(proto.Message)
	return adminCheckQuery(p.ctx, m)
}

func (p *adminPipe) CloseSend() error {
	go func() {
		defer close(p.answers)
		p.err = p.serve(p)
	}()
	return nil
}

func (p *adminPipe) RecvMsg(m any) error {
	answer, ok := <-p.answers
	switch {
	case ok:
		proto.Merge(m.(proto.Message), answer)
		return nil
	case p.err != nil:
		return p.err
	}
	return io.EOF
}

// adminPipeServer is the service's end.
type adminPipeServer struct{ *adminPipe }

func (s *adminPipeServer) SetHeader(metadata.MD) error  { return nil }
func (s *adminPipeServer) SendHeader(metadata.MD) error { return nil }
func (s *adminPipeServer) SetTrailer(metadata.MD)       {}

func (s *adminPipeServer) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), s.request)
	return nil
}

func (s *adminPipeServer) SendMsg(m any) error {
	select {
	case s.answers <- proto.CloneOf(m.(proto.Message)):
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}
