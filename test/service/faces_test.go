package service

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// service is the control plane as its definition has it.
var service = agentv1.File_pact_agent_v1_agent_proto.Services().ByName("AgentService")

// face is a way to call the control plane: every answer of a method, which is one if
// it does not stream. each, if not nil, sees them as they come, and may end the call.
type face interface {
	call(ctx context.Context, method string, req proto.Message, each func(proto.Message) bool) ([]proto.Message, error)
}

// refusal is an error that the control plane answered with.
type refusal struct {
	code     string            // of the ErrorInfo
	metadata map[string]string // and what it says
	text     string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s %v: %s", r.code, r.metadata, r.text) }

// codeOf is the code of a refusal; empty if the error is none.
func codeOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.code
	}
	return ""
}

// reasonOf is the agent's reason in a refusal.
func reasonOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.metadata["reason"]
	}
	return ""
}

// grpcFace calls by gRPC.
type grpcFace struct {
	conn *grpc.ClientConn
	keys []string      // metadata
	sent chan struct{} // if any, is closed when a request is on its way
}

// owner calls by gRPC as the owner of the socket.
func (s *serving) owner() *grpcFace { return s.grpc("unix:"+s.Socket, "") }

// grpc calls by gRPC at a target, with a token if there is one.
func (s *serving) grpc(target, token string) *grpcFace {
	s.w.t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.w.t.Cleanup(func() { _ = conn.Close() })
	f := &grpcFace{conn: conn}
	if token != "" {
		f.keys = []string{"authorization", "Bearer " + token}
	}
	return f
}

func (f *grpcFace) call(ctx context.Context, method string, req proto.Message, each func(proto.Message) bool) (all []proto.Message, err error) {
	m := service.Methods().ByName(protoreflect.Name(method))
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, f.keys...))
	defer cancel()
	stream, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/%s/%s", service.FullName(), method))
	if err != nil {
		return nil, grpcError(err)
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) { // the answer says why
		return nil, grpcError(err)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, grpcError(err)
	}
	if f.sent != nil {
		close(f.sent)
	}
	for {
		msg := newMessage(m.Output())
		switch err := stream.RecvMsg(msg); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return all, grpcError(err)
		}
		all = append(all, msg)
		if each != nil && !each(msg) {
			return all, nil
		}
	}
}

func grpcError(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "agent.pact" {
			return &refusal{info.Reason, info.Metadata, s.Message()}
		}
	}
	return err
}

// newMessage is an empty message of a type.
func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // it is one of the imported file
	}
	return t.New().Interface()
}

// restFace calls by REST, as curl would.
type restFace struct {
	client *http.Client
	base   string
	token  string
}

// restOwner calls by REST as the owner of the socket.
func (s *serving) restOwner() *restFace {
	socket := s.Socket
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	s.w.t.Cleanup(transport.CloseIdleConnections)
	return &restFace{client: &http.Client{Transport: transport}, base: "http://localhost"}
}

// rest calls by REST at the agent's address, with a token if there is one.
func (s *serving) rest(token string) *restFace {
	transport := &http.Transport{}
	s.w.t.Cleanup(transport.CloseIdleConnections)
	return &restFace{client: &http.Client{Transport: transport}, base: s.Listen, token: token}
}

// route is a method's way over REST.
type route struct{ verb, path string }

// routes are those of the file that the gateway is made of.
var routes = sync.OnceValues(func() (map[string]route, error) {
	data, err := os.ReadFile(filepath.FromSlash("../../proto/pact/agent/v1/gateway.yaml"))
	if err != nil {
		return nil, err
	}
	var file struct {
		HTTP struct {
			Rules []struct{ Selector, Get, Post string }
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	all := map[string]route{}
	for _, r := range file.HTTP.Rules {
		name := r.Selector[strings.LastIndexByte(r.Selector, '.')+1:]
		all[name] = route{http.MethodGet, r.Get}
		if r.Post != "" {
			all[name] = route{http.MethodPost, r.Post}
		}
	}
	return all, nil
})

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// request is a method's call as its route has it.
func (f *restFace) request(ctx context.Context, method string, req proto.Message) (*http.Request, error) {
	all, err := routes()
	if err != nil {
		return nil, err
	}
	r, ok := all[method]
	if !ok {
		return nil, fmt.Errorf("%s has no route", method)
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(req)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	path := inPath.ReplaceAllStringFunc(r.path, func(name string) string {
		name = strings.Trim(name, "{}")
		defer delete(fields, name)
		return url.PathEscape(fmt.Sprint(fields[name]))
	})
	var body io.Reader
	if r.verb == http.MethodPost {
		data, err := json.Marshal(fields)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	} else {
		query := url.Values{}
		for name, value := range fields {
			query.Set(name, fmt.Sprint(value))
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
	}
	out, err := http.NewRequestWithContext(ctx, r.verb, f.base+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		out.Header.Set("Content-Type", "application/json")
	}
	if f.token != "" {
		out.Header.Set("Authorization", "Bearer "+f.token)
	}
	return out, nil
}

func (f *restFace) call(ctx context.Context, method string, req proto.Message, each func(proto.Message) bool) (all []proto.Message, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := f.request(ctx, method, req)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	m := service.Methods().ByName(protoreflect.Name(method))
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		return nil, restError(body, resp.Status)
	}
	if !m.IsStreamingServer() {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		msg := newMessage(m.Output())
		if err := protojson.Unmarshal(body, msg); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", method, err, body)
		}
		return []proto.Message{msg}, nil
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var line struct{ Result, Error json.RawMessage }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return all, fmt.Errorf("%s: %w: %s", method, err, lines.Bytes())
		}
		if line.Error != nil {
			return all, restError(line.Error, resp.Status)
		}
		msg := newMessage(m.Output())
		if err := protojson.Unmarshal(line.Result, msg); err != nil {
			return all, fmt.Errorf("%s: %w: %s", method, err, line.Result)
		}
		all = append(all, msg)
		if each != nil && !each(msg) {
			return all, nil
		}
	}
	return all, lines.Err()
}

// restError reads a google.rpc.Status.
func restError(body []byte, statusLine string) error {
	var s struct {
		Message string
		Details []struct {
			Reason, Domain string
			Metadata       map[string]string
		}
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("HTTP %s: %w: %s", statusLine, err, body)
	}
	for _, d := range s.Details {
		if d.Domain == "agent.pact" {
			return &refusal{d.Reason, d.Metadata, s.Message}
		}
	}
	return fmt.Errorf("HTTP %s: %s", statusLine, body)
}

// one calls a method that has one answer.
func one[M proto.Message](t *testing.T, f face, method string, req proto.Message) M {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := f.call(ctx, method, req, nil)
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: %d answers, %v", method, len(all), err)
	}
	return all[0].(M)
}

// result calls a method that streams how an operation goes, and returns how it ended.
func result(t *testing.T, f face, method string, req proto.Message) *agentv1.Result {
	t.Helper()
	return begin(t, f, method, req).result()
}

// operation is one under way.
type operation struct {
	t       *testing.T
	method  string
	updates chan *agentv1.OperationUpdate
	end     context.CancelFunc

	err error // once updates is closed
}

// begin starts an operation.
func begin(t *testing.T, f face, method string, req proto.Message) *operation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	o := &operation{t: t, method: method, updates: make(chan *agentv1.OperationUpdate, 1000), end: cancel}
	go func() {
		defer close(o.updates)
		_, o.err = f.call(ctx, method, req, func(m proto.Message) bool {
			o.updates <- m.(*agentv1.OperationUpdate)
			return true
		})
	}()
	t.Cleanup(func() {
		cancel()
		for range o.updates {
		}
	})
	return o
}

// until returns the first update that is as wanted.
func (o *operation) until(what string, wanted func(*agentv1.OperationUpdate) bool) *agentv1.OperationUpdate {
	o.t.Helper()
	for u := range o.updates {
		if wanted(u) {
			return u
		}
		if r := u.GetResult(); r != nil {
			o.t.Fatalf("%s: before %s it ended: %v", o.method, what, r)
		}
	}
	o.t.Fatalf("%s: before %s it broke off: %v", o.method, what, o.err)
	panic("not reached")
}

// result waits for the end.
func (o *operation) result() *agentv1.Result {
	o.t.Helper()
	return o.until("its result", func(u *agentv1.OperationUpdate) bool { return u.GetResult() != nil }).GetResult()
}

// ended waits for the end, whatever it is, and returns the result if there was one.
func (o *operation) ended() (r *agentv1.Result) {
	for u := range o.updates {
		if u.GetResult() != nil {
			r = u.GetResult()
		}
	}
	return r
}

func waiting(u *agentv1.OperationUpdate) bool { return u.GetProgress().GetKind() == "waiting" }
