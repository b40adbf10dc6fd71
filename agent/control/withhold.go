package control

import (
	"cmp"
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// withholder takes the links and codes of pending sign-ins out of a text, whatever
// business says them in its card or a reply; nil for who may see them anyway.
func (s *Server) withholder(ctx context.Context) (func(business, text string) string, error) {
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
	mapTexts(m.ProtoReflect(), "", hide)
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
	return hideError(err, hide)
}

func hideError(err error, hide func(business, text string) string) error {
	p := status.Convert(err).Proto()
	p.Message = hide("", p.Message)
	for _, d := range p.Details {
		info := new(errdetails.ErrorInfo)
		if d.UnmarshalTo(info) != nil {
			continue
		}
		if detail, ok := info.Metadata["detail"]; ok { // the rest are our own words
			info.Metadata["detail"] = hide("", detail)
		}
		if failed := d.MarshalFrom(info); failed != nil {
			return toStatus(failed)
		}
	}
	return status.FromProto(p).Err()
}

// ours are the fields that hold this program's own ids and words, or what callers are
// named by. What belongs to a sign-in is not looked for there: a business that picks a
// code like one of our words would take that out of every answer.
var ours = fieldSet(
	"id", "status", "state", "reason", "effect", "kind", "verdict", "issues", "digest", "next", "next_page_token", "preference", "profile",
	"business", "conversation", "message", "message_id", "receipt", "approval", "authorization", "grant", "sent_message",
	"actor", "task", "by", "decided_by", "ended_by", "settled_by", "discovered_by", "fetched_by", "rechecked_by", "reconciled_by",
	"AuthorizationStatus.text", "Cut.sha256", "Business.fingerprint", "Business.security_fingerprint",
	"Provider.source", "Provider.origin", "Provider.audience", "Provider.label", "Status.audiences",
)

// theirs are those of these names that hold a business's words all the same, or the
// message that a business is sent.
var theirs = fieldSet("Scope.id", "Skill.id", "Progress.business", "SignIn.business", "Approval.message")

func fieldSet(names ...string) map[string]bool {
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	return all
}

// isOurs reports whether a field holds nothing that is a business's.
func isOurs(f protoreflect.FieldDescriptor) bool {
	switch f.ContainingMessage().Name() {
	case "Identity", "Process", "Settings":
		return true
	}
	full := string(f.ContainingMessage().Name()) + "." + string(f.Name())
	return ours[full] || f.Kind() == protoreflect.StringKind && ours[string(f.Name())] && !theirs[full]
}

// businessOf is the id of the business that a message is about; of says whose one is that
// does not tell.
func businessOf(m protoreflect.Message, of string) string {
	name := m.Descriptor().Name()
	field := protoreflect.Name("business")
	if name == "Business" {
		field = "id"
	}
	f := m.Descriptor().Fields().ByName(field)
	if f == nil || f.Kind() != protoreflect.StringKind || !isOurs(f) {
		return of
	}
	return cmp.Or(m.Get(f).String(), of)
}

// mapTexts replaces every text of a message that may be a business's, and of those
// within it. of is the business that it is about, as far as what it is in tells.
func mapTexts(m protoreflect.Message, of string, replace func(business, text string) string) {
	of = businessOf(m, of)
	by := func(text string) string { return replace(of, text) }
	value := func(f protoreflect.FieldDescriptor, v protoreflect.Value) (protoreflect.Value, bool) {
		switch {
		case f.Kind() == protoreflect.StringKind:
			return protoreflect.ValueOfString(by(v.String())), true
		case f.Message() != nil:
			mapTexts(v.Message(), of, replace)
		}
		return v, false
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isOurs(f):
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
