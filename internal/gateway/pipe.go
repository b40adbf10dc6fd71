package gateway

import (
	"context"
	"io"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// pipe is the client's end of a stream in this process: one request, then answers
// until the service ends.
type pipe struct {
	ctx     context.Context
	check   func(proto.Message) error
	serve   func(*pipe) error
	request proto.Message
	answers chan proto.Message
	first   proto.Message // that Header has waited for
	err     error         // of the service; read after answers is closed
}

// The methods of a grpc.ClientStream.

func (p *pipe) Context() context.Context { return p.ctx }
func (p *pipe) Trailer() metadata.MD     { return nil }

// Header waits for the first answer, so that a refusal before it is answered as one
// of any other call, and not as the end of a stream.
func (p *pipe) Header() (metadata.MD, error) {
	answer, ok := <-p.answers
	if !ok {
		return nil, p.err
	}
	p.first = answer
	return nil, nil
}

func (p *pipe) SendMsg(m any) error {
	p.request = m.(proto.Message)
	return p.check(p.request)
}

func (p *pipe) CloseSend() error {
	go func() {
		defer close(p.answers)
		p.err = p.serve(p)
	}()
	return nil
}

func (p *pipe) RecvMsg(m any) error {
	answer, ok := p.first, true
	if p.first = nil; answer == nil {
		answer, ok = <-p.answers
	}
	switch {
	case ok:
		proto.Merge(m.(proto.Message), answer)
		return nil
	case p.err != nil:
		return p.err
	}
	return io.EOF
}

// pipeServer is the service's end.
type pipeServer struct{ *pipe }

// The methods of a grpc.ServerStream that a pipe has otherwise or not at all.

func (s *pipeServer) SetHeader(metadata.MD) error  { return nil }
func (s *pipeServer) SendHeader(metadata.MD) error { return nil }
func (s *pipeServer) SetTrailer(metadata.MD)       {}

func (s *pipeServer) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), s.request)
	return nil
}

func (s *pipeServer) SendMsg(m any) error {
	select {
	case s.answers <- proto.CloneOf(m.(proto.Message)):
		return nil
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}
