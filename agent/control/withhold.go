package control

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// withholder takes the links and codes of pending sign-ins out of a text, whatever
// business says them in its card or a reply; nil for who may see them anyway.
func (s *Server) withholder(ctx context.Context) (func(string) string, error) {
	if c, ok := callerOf(ctx); !ok || !c.inTask && c.scope.rank() >= ScopeOperator.rank() {
		return nil, nil
	}
	return s.agent.Withholder(context.WithoutCancel(ctx), s.as(ctx))
}

// withheld is an answer as its caller may have it. Without a store that tells what must
// be hidden there is none.
func (s *Server) withheld(ctx context.Context, m proto.Message) (proto.Message, error) {
	hide, err := s.withholder(ctx)
	if hide == nil || err != nil {
		return m, err
	}
	m = proto.Clone(m)
	mapTexts(m.ProtoReflect(), hide)
	return m, nil
}

// withheldError is the same for a refusal: its words may be a business's.
func (s *Server) withheldError(ctx context.Context, err error) error {
	hide, failed := s.withholder(ctx)
	if failed != nil {
		return toStatus(failed)
	}
	if hide == nil {
		return err
	}
	p := status.Convert(err).Proto()
	p.Message = hide(p.Message)
	for _, d := range p.Details {
		info := new(errdetails.ErrorInfo)
		if d.UnmarshalTo(info) != nil {
			continue
		}
		mapTexts(info.ProtoReflect(), hide)
		if failed := d.MarshalFrom(info); failed != nil {
			return toStatus(failed)
		}
	}
	return status.FromProto(p).Err()
}

// mapTexts replaces every text of a message, and of those within it.
func mapTexts(m protoreflect.Message, by func(string) string) {
	value := func(f protoreflect.FieldDescriptor, v protoreflect.Value) (protoreflect.Value, bool) {
		switch {
		case f.Kind() == protoreflect.StringKind:
			return protoreflect.ValueOfString(by(v.String())), true
		case f.Message() != nil:
			mapTexts(v.Message(), by)
		}
		return v, false
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			all := v.Map()
			fresh := m.NewField(f).Map()
			all.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				v, _ = value(f.MapValue(), v)
				if f.MapKey().Kind() == protoreflect.StringKind {
					k = protoreflect.ValueOfString(by(k.String())).MapKey()
				}
				fresh.Set(k, v)
				return true
			})
			m.Set(f, protoreflect.ValueOfMap(fresh))
		case f.IsList():
			for i := range v.List().Len() {
				if item, changed := value(f, v.List().Get(i)); changed {
					v.List().Set(i, item)
				}
			}
		default:
			if text, changed := value(f, v); changed {
				m.Set(f, text)
			}
		}
		return true
	})
}
