package main

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSONTo implements [json.MarshalerTo].
func (o object) MarshalJSONTo(e *jsontext.Encoder) error {
	if err := e.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, m := range o {
		if err := e.WriteToken(jsontext.String(m.name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(e, m.value); err != nil {
			return err
		}
	}
	return e.WriteToken(jsontext.EndObject)
}

// messageJSON is a message of the admin API as --output json shows it: member
// names in camel case and the order of admin.proto, whole numbers as numbers,
// times in RFC 3339 UTC, durations in seconds ("120s"), lists never null, an unset
// time, duration or message left out. Page tokens are left out: lists are whole.
func messageJSON(m proto.Message) object {
	return reflectJSON(m.ProtoReflect())
}

func reflectJSON(m protoreflect.Message) object {
	o := object{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "next_page_token" || f.Message() != nil && !f.IsList() && !f.IsMap() && !m.Has(f) {
			continue
		}
		o = append(o, member{f.JSONName(), fieldJSON(f, m.Get(f))})
	}
	return o
}

func fieldJSON(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsList():
		list := make([]any, v.List().Len())
		for i := range list {
			list[i] = valueJSON(v.List().Get(i))
		}
		return list
	case f.IsMap():
		m := make(map[string]any, v.Map().Len())
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			m[k.String()] = valueJSON(v)
			return true
		})
		return m
	}
	return valueJSON(v)
}

func valueJSON(v protoreflect.Value) any {
	m, ok := v.Interface().(protoreflect.Message)
	if !ok {
		return v.Interface() // string, bool or a number
	}
	switch m := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return m.AsTime()
	case *durationpb.Duration:
		return strconv.FormatFloat(m.AsDuration().Seconds(), 'f', -1, 64) + "s"
	default:
		return messageJSON(m)
	}
}

// when is a message's time, zero if unset.
func when(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
