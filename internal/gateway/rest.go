package gateway

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Mux is what the generated code registers routes with.
type Mux = runtime.ServeMux

// REST says how a service is served as REST.
type REST struct {
	Service *Service
	// Register is RegisterXServiceHandlerClient, for a client on the connection given.
	Register func(context.Context, *Mux, grpc.ClientConnInterface) error
	// Admit refuses a request before anything is read of it but its head.
	Admit func(*http.Request) error
	// Realm is that of the challenge that goes with a 401.
	Realm string
	// MaxBody is the size in bytes of the largest body.
	MaxBody int64
	// BodyTimeout is how long a body may take to come, where the http.Server has no
	// timeout for that. 0: as long as it likes.
	BodyTimeout time.Duration
	// RequestHeaders are those that go on to the service as metadata, beside
	// Authorization, and AnswerHeaders those of the service's that go out: in
	// canonical form.
	RequestHeaders, AnswerHeaders []string
	// Malformed is the refusal of a body that is not what it must be. nil: it has the
	// decoder's words, which can have some of the body.
	Malformed func(error) error
	// NoMethod is the refusal of a path where no method is, and of one that takes
	// another HTTP method. nil: it has the gateway's words.
	NoMethod func(text string) error
}

// Handler serves the routes.
func (c REST) Handler() (http.Handler, error) {
	r := &rest{c}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, strictJSON{&runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
		}, c}),
		runtime.WithErrorHandler(r.httpError),
		runtime.WithRoutingErrorHandler(r.routingError),
		runtime.WithIncomingHeaderMatcher(oneOf(c.RequestHeaders)),
		runtime.WithOutgoingHeaderMatcher(oneOf(c.AnswerHeaders)),
		runtime.WithDisablePathLengthFallback(),
	)
	if err := c.Register(context.Background(), mux, c.Service.Conn(nil)); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		_, out := runtime.MarshalerForRequest(mux, req)
		in := &request{query: req.URL.Query()}
		if c.BodyTimeout > 0 && req.ContentLength != 0 {
			in.timeouts = http.NewResponseController(w)
			_ = in.timeouts.SetReadDeadline(time.Now().Add(c.BodyTimeout)) // the server's own stands then
		}
		req = req.WithContext(context.WithValue(req.Context(), requestKey{}, in))
		refuse := func(err error) { r.httpError(req.Context(), mux, out, w, req, err) }
		if err := c.Admit(req); err != nil {
			refuse(err)
			return
		}
		if req.Method == http.MethodPost || req.Method == http.MethodPut {
			types := req.Header.Values("Content-Type")
			if t, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || t != "application/json" || len(types) != 1 {
				refuse(c.Service.Invalid("Content-Type", "must be application/json"))
				return
			}
			if req.URL.RawQuery != "" {
				refuse(c.Service.Invalid("query", "everything belongs in the JSON body"))
				return
			}
		}
		req.Body = &body{http.MaxBytesReader(w, req.Body, c.MaxBody), in}
		mux.ServeHTTP(w, req)
	}), nil
}

func oneOf(names []string) runtime.HeaderMatcherFunc {
	return func(name string) (string, bool) {
		for _, n := range names {
			if strings.EqualFold(n, name) {
				return n, true
			}
		}
		return "", false
	}
}

type rest struct{ REST }

// routingError answers where no method is. The gateway would say 501 to a wrong
// HTTP method.
func (c *rest) routingError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if c.NoMethod != nil && (code == http.StatusMethodNotAllowed || code == http.StatusNotFound) {
		text := "no method has this path"
		if code == http.StatusMethodNotAllowed {
			text = "this path takes another HTTP method"
		}
		runtime.HTTPError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: c.NoMethod(text)})
		return
	}
	if code != http.StatusMethodNotAllowed {
		runtime.DefaultRoutingErrorHandler(ctx, mux, m, w, r, code)
		return
	}
	runtime.HTTPError(ctx, mux, m, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: status.Error(codes.Unimplemented, "this path takes another HTTP method")})
}

// refusedTimeout is how long the rest of a refused request may take to come, which is
// not looked at.
const refusedTimeout = time.Second

// httpError answers with a google.rpc.Status in JSON. What the gateway refuses by
// itself becomes a refusal of the service's. On HTTP/1 the connection of a request whose
// body was not read to its end goes with the answer: that would wait for the rest, which
// may never come.
func (c *rest) httpError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	in := r.Context().Value(requestKey{}).(*request)
	if r.ProtoMajor == 1 && r.ContentLength != 0 && !in.whole {
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedTimeout))
	}
	var routed *runtime.HTTPStatusError
	if st, _ := status.FromError(err); len(st.Details()) == 0 && st.Code() == codes.InvalidArgument && !errors.As(err, &routed) {
		field, text := "request", st.Message()
		if in.malformed != nil {
			err = in.malformed
		} else {
			err = c.Service.Invalid(field, "%s", text)
		}
	}
	if status.Code(err) == codes.Unauthenticated {
		w = &challenge{w, c.Realm}
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// challenge sets the header that goes with a 401, where the gateway puts its message.
type challenge struct {
	http.ResponseWriter
	realm string
}

func (c *challenge) WriteHeader(code int) {
	c.Header().Set("WWW-Authenticate", `Bearer realm="`+c.realm+`"`)
	c.ResponseWriter.WriteHeader(code)
}

// request is what a REST request said, beside what the gateway makes of it.
type request struct {
	query     url.Values
	body      proto.Message // as it was decoded; nil: there was none
	malformed error
	timeouts  *http.ResponseController // nil: none was set
	whole     bool                     // the body was read to its end
}

type requestKey struct{}

// body is that of a request.
type body struct {
	io.ReadCloser
	of *request
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.whole = b.of.whole || err == io.EOF
	return n, err
}

// strictJSON reads JSON strictly: unknown and repeated members, and anything after
// the value, are refused.
type strictJSON struct {
	*runtime.JSONPb
	rest REST
}

// Unmarshal implements [runtime.Marshaler].
func (m strictJSON) Unmarshal(data []byte, v any) error {
	msg, ok := v.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	return protojson.Unmarshal(data, msg)
}

// NewDecoder implements [runtime.Marshaler].
func (m strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		b, ok := r.(*body)
		if !ok {
			return errors.New("not a body of a request")
		}
		data, err := io.ReadAll(r)
		if b.of.timeouts != nil { // the answer may take longer
			_ = b.of.timeouts.SetReadDeadline(time.Time{})
		}
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			err = m.rest.Service.Invalid("body", "is larger than %d bytes", tooLarge.Limit)
		case err != nil:
			err = m.rest.Service.Invalid("body", "ended early")
		case len(data) == 0:
			return io.EOF // an empty body is an empty request
		default:
			if err = m.Unmarshal(data, v); err == nil {
				b.of.body = proto.Clone(v.(proto.Message))
			} else if m.rest.Malformed != nil {
				err = m.rest.Malformed(err)
			} else {
				err = m.rest.Service.Invalid("body", "%v", err)
			}
		}
		b.of.malformed = err // of an error returned, the gateway keeps only the words
		return err
	})
}

// checkRequest refuses what a REST request says and the gateway would ignore: query
// parameters that the request has no field for, and a second value for what the path
// says.
func (s *Service) checkRequest(ctx context.Context, m proto.Message) error {
	in, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		return nil // not from REST
	}
	message := m.ProtoReflect()
	fields := message.Descriptor().Fields()
	path, _ := runtime.HTTPPathPattern(ctx)
	for name := range in.query {
		f := fields.ByTextName(name)
		if f == nil {
			f = fields.ByJSONName(name)
		}
		if f == nil {
			return s.Invalid("query", "parameter %q is unknown", Shorten(name, 64))
		}
		if strings.Contains(path, "{"+string(f.Name())+"}") {
			return s.Invalid("query", "parameter %q is in the path already", Shorten(name, 64))
		}
	}
	if in.body == nil {
		return nil
	}
	said := in.body.ProtoReflect()
	for i := range fields.Len() {
		f := fields.Get(i)
		if strings.Contains(path, "{"+string(f.Name())+"}") && said.Has(f) && !said.Get(f).Equal(message.Get(f)) {
			return s.Invalid(string(f.Name()), "is another than in the path")
		}
	}
	return nil
}
