package signer

import (
	"context"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"

	"github.com/pactsigner/pactsigner/jwks"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Handler serves the public HTTP face: the contract as REST, each issuer's key
// set and discovery document, and /livez. Requests are routed by host; an unknown
// one is 404.
func (s *Service) Handler() http.Handler { return s.handler }

func (s *Service) newHandler() (http.Handler, error) {
	gateway := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, contractJSON{}),
		runtime.WithErrorHandler(contractError),
		runtime.WithIncomingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithDisablePathLengthFallback(),
	)
	if err := signerv1.RegisterSignerServiceHandlerServer(context.Background(), gateway, s); err != nil {
		return nil, err
	}
	byIssuer := make(map[*issuer]http.Handler, len(s.issuers))
	for _, i := range s.issuers {
		byIssuer[i] = s.issuerHandler(i, gateway)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		closeUnread(w.Header(), r)
		if r.URL.Path == "/livez" {
			livez(w, r)
			return
		}
		i, known := s.byHost[strings.ToLower(r.Host)]
		if !known {
			http.NotFound(w, r)
			return
		}
		byIssuer[i].ServeHTTP(w, r)
	}), nil
}

// closeUnread has the connection end with the answer, which net/http would else
// hold back until the rest of the body is there; contractBody takes that back once
// the body was read. HTTP/2 needs none of it.
func closeUnread(answer http.Header, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		answer.Set("Connection", "close")
	}
}

// livez answers that the process serves HTTP, whatever host it is asked under.
func livez(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, "ok\n") // the prober has left if this fails
}

// issuerHandler serves one issuer.
func (s *Service) issuerHandler(i *issuer, gateway http.Handler) http.Handler {
	keySet := jwks.Handler(i.KeySetMaxAge, i.Keys.KeySet)
	discovery := jwks.Handler(i.KeySetMaxAge, i.Keys.Discovery)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case jwks.WellKnownPath:
			keySet.ServeHTTP(w, r)
		case jwks.DiscoveryPath:
			discovery.ServeHTTP(w, r)
		case string(opSign), string(opStatus), string(opEnroll):
			s.serveContract(w, r, i, gateway)
		default:
			http.NotFound(w, r)
		}
	})
}

// serveContract serves a call of the contract.
func (s *Service) serveContract(w http.ResponseWriter, r *http.Request, i *issuer, gateway http.Handler) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodPost {
		h.Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := parameters["charset"]
	if err != nil || media != "application/json" || len(r.Header.Values("Content-Type")) != 1 ||
		charset != "" && !strings.EqualFold(charset, "utf-8") {
		writeRefusal(w, invalid("Content-Type: must be application/json"))
		return
	}
	if enc := strings.Join(r.Header.Values("Content-Encoding"), ","); enc != "" && enc != "identity" {
		writeRefusal(w, invalid("Content-Encoding: bodies are not compressed"))
		return
	}
	c := &call{
		issuer: i, authorization: r.Header.Values("Authorization"),
		address: clientAddress(r.RemoteAddr, r.Header.Values("X-Forwarded-For"), s.cfg.TrustedProxies),
	}
	r.Header.Del("Grpc-Timeout") // the gateway would heed it; the deadline is ours
	r.Header.Del("Te")           // no answer has trailers
	defer s.recovered(r.Context(), func(refusal *Refusal) { writeRefusal(w, refusal) })
	r.Body = &contractBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), call: c, answer: h}
	ctx := withCall(r.Context(), c)
	gateway.ServeHTTP(&lastCheck{ResponseWriter: w, ctx: ctx, service: s, call: c}, r.WithContext(ctx))
}

// lastCheck asks the switch once more when the answer is handed to the transport;
// a token made while the switch fell is thrown away. The gateway writes an answer
// in one piece.
type lastCheck struct {
	http.ResponseWriter
	ctx     context.Context
	service *Service
	call    *call
}

// Write implements http.ResponseWriter.
func (l *lastCheck) Write(body []byte) (n int, err error) {
	refusal := l.service.deliver(l.ctx, l.call, func() {
		l.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if n, err = l.ResponseWriter.Write(body); err == nil {
			err = http.NewResponseController(l.ResponseWriter).Flush() // or it would leave after the check
		}
	})
	if refusal != nil {
		writeRefusal(l.ResponseWriter, refusal)
		return len(body), nil
	}
	if o := l.call.outgoing; o != nil && o.sent != nil {
		o.sent()
	}
	return n, err
}

// contractBody remembers what is wrong with a body, of which the gateway keeps
// only the words, and lets the connection live once it was read.
type contractBody struct {
	io.ReadCloser
	call   *call
	answer http.Header
}

// Read implements io.Reader.
func (b *contractBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.answer.Del("Connection")
	}
	return n, err
}

// contractJSON is the strict JSON of the contract.
type contractJSON struct{}

var _ runtime.Marshaler = contractJSON{}

// Marshal implements runtime.Marshaler.
func (contractJSON) Marshal(v any) ([]byte, error) { return marshalResponse(v) }

// Unmarshal implements runtime.Marshaler.
func (contractJSON) Unmarshal(data []byte, v any) error { return unmarshalRequest(data, v) }

// ContentType implements runtime.Marshaler.
func (contractJSON) ContentType(any) string { return "application/json" }

// NewDecoder implements runtime.Marshaler.
func (contractJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		err := decodeRequest(r, v)
		if body, ok := r.(*contractBody); ok && err != nil {
			body.call.malformed = err
		}
		return err
	})
}

func decodeRequest(r io.Reader, v any) error {
	body, err := io.ReadAll(r)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return invalid("body: is too large")
	case err != nil:
		return invalid("body: ended early")
	}
	return unmarshalRequest(body, v)
}

// NewEncoder implements runtime.Marshaler.
func (contractJSON) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		b, err := marshalResponse(v)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
}

// contractError answers with the reason's status and body, and nothing else.
// Whatever has no reason of ours is 503.
func contractError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.outgoing = nil // nothing of it goes out
		if c.malformed != nil {
			err = c.malformed
		}
	}
	writeRefusal(w, refusalOf(err))
}

// writeRefusal writes a refusal as REST has it.
func writeRefusal(w http.ResponseWriter, r *Refusal) {
	a := answers[r.Reason]
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if r.Reason == ReasonUnauthorized {
		h.Set("WWW-Authenticate", "Bearer, PACT-Device")
	}
	if r.Retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(retrySeconds(r.Retry), 10))
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, `{"error":"`+a.word+`"}`) // the caller has left if this fails
}

// retrySeconds rounds up: who comes back after them is not too early.
func retrySeconds(d time.Duration) int64 { return max(1, int64(math.Ceil(d.Seconds()))) }
