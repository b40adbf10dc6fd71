package control

import (
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/internal/gateway"
)

// What a request may hold at most (CP-3).
const (
	maxID      = 200 // characters
	maxURL     = 2048
	maxScopes  = 20
	maxPage    = 200
	pageSize   = 50
	maxWaiting = 60 * time.Second
)

// limits are the most characters that a text field of a request may have, by its name.
// One that is not here has those of an id.
var limits = map[string]int{
	"id": maxID, "conversation": maxID, "scopes": maxID,
	"message": 4000, "purpose": 300, "label": 120, "audience": 512,
	"business": maxURL, "domain": 253, "card_url": maxURL, "origin": maxURL, "signer_url": maxURL, "issuer": maxURL,
	"credential": 4096, "enrollment_token": 4096, "deployment": 20,
	"effect": 20, "preference": 20, "decision": 20, "digest": 64, "page_token": 4096,
}

// words are the fields that hold one of a few words. An effect that is none of its
// words counts as unknown (AD-5), and is not refused here.
var words = map[string][]string{
	"decision":   {"approve", "deny"},
	"deployment": {"", "managed", "self_hosted"},
}

// checkRequest refuses what a request may not hold: fields that are not known, and
// values beyond their limits.
func checkRequest(req proto.Message) error {
	m := req.ProtoReflect()
	if at := gateway.Unknown(m); at != nil {
		return invalid(string(at.Descriptor().Name()), "has a field that this agent does not know; is it older than its client?")
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if err := checkField(m, fields.Get(i)); err != nil {
			return err
		}
	}
	return nil
}

func checkField(m protoreflect.Message, f protoreflect.FieldDescriptor) error {
	name, v := string(f.Name()), m.Get(f)
	switch {
	case f.Kind() == protoreflect.StringKind && f.IsList():
		list := v.List()
		if list.Len() > maxScopes {
			return invalid(name, "are more than %d", maxScopes)
		}
		for i := range list.Len() {
			if err := checkText(name, list.Get(i).String()); err != nil {
				return err
			}
		}
	case f.Kind() == protoreflect.StringKind:
		if choice, ok := words[name]; ok && !slices.Contains(choice, v.String()) {
			return invalid(name, "is not one of %q", choice)
		}
		return checkText(name, v.String())
	case name == "page_size":
		if n := v.Int(); n < 0 || n > maxPage {
			return invalid(name, "must be 1 to %d, or 0 for %d", maxPage, pageSize)
		}
	case name == "wait" && m.Has(f):
		d, ok := v.Message().Interface().(*durationpb.Duration)
		if !ok || d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > maxWaiting {
			return invalid(name, "must be 0s to %.0fs", maxWaiting.Seconds())
		}
	}
	return nil
}

func checkText(name, text string) error {
	limit, ok := limits[name]
	if !ok {
		limit = maxID
	}
	if utf8.RuneCountInString(text) > limit {
		return invalid(name, "is longer than %d characters", limit)
	}
	return nil
}
