package control

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// What gRPC itself would refuse, or wait for, is looked at before it: every request is
// one message, and a refusal has the contract's form.

// prefix is the length of what stands before a message: whether it is compressed, and
// its own length.
const prefix = 5

// whole reads the request of a gRPC call to its end, which must come in time.
func (s *Server) whole(w http.ResponseWriter, r *http.Request) (io.ReadCloser, error) {
	timeouts := http.NewResponseController(w)
	_ = timeouts.SetReadDeadline(time.Now().Add(s.bodyTimeout))
	defer func() { _ = timeouts.SetReadDeadline(time.Time{}) }() // the answer may take longer
	body, err := io.ReadAll(io.LimitReader(r.Body, prefix+maxBody+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, invalid("body", "did not come to its end within %s", s.bodyTimeout)
	case err != nil:
		return nil, status.Error(codes.Canceled, "the request ended early")
	case len(body) > prefix+maxBody:
		return nil, invalid("body", "is larger than %d bytes", maxBody)
	case len(body) < prefix || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-prefix:
		return nil, invalid("body", "must be one message, which is not compressed")
	}
	return io.NopCloser(bytes.NewReader(body)), checkWire(r.URL.Path, body[prefix:])
}

// checkWire refuses bytes that are no request of a method, and what protobuf lets pass:
// one that says something twice.
func checkWire(full string, body []byte) error {
	m, known := methodOf(full)
	if !known {
		return nil // it is refused for that
	}
	desc := agentv1.File_pact_agent_v1_agent_proto.Services().ByName("AgentService").Methods().ByName(protoreflect.Name(m.Name)).Input()
	malformed := invalid("body", "is no %s", desc.Name())
	if err := checkFields(desc, "", body, malformed); err != nil {
		return err
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(desc.FullName())
	if err != nil || proto.Unmarshal(body, t.New().Interface()) != nil {
		return malformed
	}
	return nil
}

// maxNested is how deep messages of a request may be in one another: more than they are.
const maxNested = 10

// checkFields is checkWire for a message, and those within it. within is the path of its
// field, with a dot behind it; empty: it is the request.
func checkFields(desc protoreflect.MessageDescriptor, within string, body []byte, malformed error) error {
	seen := map[protowire.Number]bool{}
	for rest := body; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return malformed
		}
		value := rest[n:]
		if n = protowire.ConsumeFieldValue(num, typ, value); n < 0 {
			return malformed
		}
		rest = value[n:]
		f := desc.Fields().ByNumber(num)
		if f == nil {
			continue // it is refused for that
		}
		if f.Cardinality() != protoreflect.Repeated && seen[num] {
			return invalid(within+string(f.Name()), "is there twice")
		}
		seen[num] = true
		if f.Kind() == protoreflect.Int32Kind && typ == protowire.VarintType {
			if v, _ := protowire.ConsumeVarint(value); int64(v) != int64(int32(v)) { // which protobuf would cut
				return invalid(within+string(f.Name()), "is beyond 32 bits")
			}
		}
		if typ != protowire.BytesType {
			continue
		}
		held, _ := protowire.ConsumeBytes(value)
		switch {
		case f.Kind() == protoreflect.StringKind && !utf8.Valid(held):
			return notUTF8(desc, f)
		case f.Message() != nil && strings.Count(within, ".") >= maxNested:
			return malformed
		case f.Message() != nil:
			if err := checkFields(f.Message(), within+string(f.Name())+".", held, malformed); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkUTF8 refuses a request with a text that is none, in the words of who is asked.
func checkUTF8(req proto.Message) (err error) {
	m := req.ProtoReflect()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.StringKind:
		case !f.IsList():
			if !utf8.ValidString(v.String()) {
				err = notUTF8(m.Descriptor(), f)
			}
		default:
			for i := range v.List().Len() {
				if !utf8.ValidString(v.List().Get(i).String()) {
					err = notUTF8(m.Descriptor(), f)
				}
			}
		}
		return err == nil
	})
	return err
}

func notUTF8(request protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor) error {
	reason := agent.ReasonInvalidInput
	if f.Name() == "scopes" {
		reason = agent.ReasonUnknownScope // no card has it
	}
	return invalidBecause(request, f, reason, "it is not valid UTF-8")
}

// refuseGRPC answers a call that gRPC has not seen.
func refuseGRPC(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	h.Set("Grpc-Message", url.PathEscape(st.Message()))
	if details, err := proto.Marshal(st.Proto()); err == nil && len(st.Details()) > 0 {
		h.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
	}
	w.WriteHeader(http.StatusOK)
}
