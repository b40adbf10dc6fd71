package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/gateway"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
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
	"preference": {string(agent.PreferPACT), string(agent.RequirePACT), string(agent.DisabledPACT)},
}

// required are the fields without which a request asks for nothing, by the request.
var required = map[protoreflect.Name][]protoreflect.Name{
	"GetConversationRequest":        {"id"},
	"GetTranscriptRequest":          {"conversation"},
	"GetAuthorizationRequest":       {"id"},
	"GetAuthorizationStatusRequest": {"id"},
	"WaitAuthorizationRequest":      {"id"},
	"GetSignInRequest":              {"id"},
	"CancelAuthorizationRequest":    {"id"},
	"DisconnectGrantRequest":        {"id"},
	"GetReceiptRequest":             {"id"},
	"VerifyReceiptRequest":          {"id"},
	"GetReviewRequest":              {"id"},
	"AcknowledgeEvidenceRequest":    {"id"},
	"GetApprovalRequest":            {"id"},
	"DecideApprovalRequest":         {"id"},
	"SendMessageRequest":            {"business", "message"},
	"StartAuthorizationRequest":     {"business", "scopes"},
	"SetProviderRequest":            {"origin", "audience"},
	"RemoveProviderRequest":         {"origin"},
	"SetCredentialRequest":          {"signer_url", "credential"},
	"EnrollDeviceKeyRequest":        {"signer_url"},
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
	return checkWhole(req)
}

// missing are the refusals for a field that is not there, in the agent's own words
// where it has some: what it is told then is no other for its client.
var missing = map[string]string{
	"business": aBusiness, "message": "message: it is blank", "scopes": "scopes: name at least one permission",
}

const aBusiness = "name the business by its domain or by its card's URL, and by one of them alone"

// missingKey is in the metadata of such a refusal.
const missingKey = "missing"

func refuseMissing(field string) error {
	return statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": field, missingKey: "true"}, cmp.Or(missing[field], field+": is required"))
}

// checkWhole refuses a request that is not whole, or asks for two things at once.
func checkWhole(req proto.Message) error {
	m := req.ProtoReflect()
	for _, name := range required[m.Descriptor().Name()] {
		f := m.Descriptor().Fields().ByName(name)
		if !m.Has(f) || !f.IsList() && strings.TrimSpace(m.Get(f).String()) == "" {
			return refuseMissing(string(name))
		}
	}
	switch req := req.(type) {
	case *agentv1.DiscoverBusinessRequest:
		if (req.Domain == "") == (req.CardUrl == "") {
			return statusOf(codes.InvalidArgument, codeInvalid, map[string]string{"field": "domain"}, aBusiness)
		}
	case *agentv1.DecideApprovalRequest:
		if req.Decision == "approve" && req.Digest == "" {
			return invalid("digest", "is required to approve: it is that of what was shown")
		}
	case *agentv1.UpdateSettingsRequest:
		if req.Enabled == nil && req.Preference == nil {
			return invalid("request", "names no setting")
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
			return invalidBecause(m.Descriptor(), f, agent.ReasonTooManyScopes, "are more than %d", maxScopes)
		}
		for i := range list.Len() {
			text := list.Get(i).String()
			if text == "" || strings.ContainsFunc(text, unicode.IsSpace) {
				return invalid(name, "one is empty, or has a blank in it")
			}
			if err := checkText(m, f, text); err != nil {
				return err
			}
		}
	case f.Kind() == protoreflect.StringKind:
		if choice, ok := words[name]; ok && !slices.Contains(choice, v.String()) && (m.Has(f) || !f.HasPresence()) {
			last := len(choice) - 1
			return invalid(name, "say %s or %s", strings.TrimPrefix(strings.Join(choice[:last], ", "), ", "), choice[last])
		}
		return checkText(m, f, v.String())
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

func checkText(m protoreflect.Message, f protoreflect.FieldDescriptor, text string) error {
	name := string(f.Name())
	limit, ok := limits[name]
	if !ok {
		limit = maxID
	}
	if name == "business" && !strings.Contains(text, "://") {
		limit = maxID // an id or a domain
	}
	if utf8.RuneCountInString(text) > limit {
		return invalidBecause(m.Descriptor(), f, tooLong[name], "is longer than %d characters", limit)
	}
	return nil
}

// tooLong are the agent's reasons for a text that is too long, where it has some: no
// record and no permission has such a name.
var tooLong = map[string]agent.Reason{"message": agent.ReasonMessageTooLong, "scopes": agent.ReasonUnknownScope}

// becauseKey is in the metadata of a refusal for which the agent itself has a reason,
// and recordKey of one that no record can have.
const (
	becauseKey = "reason"
	recordKey  = "record"
)

// invalidBecause is invalid with the reason that the agent itself has for the same. What
// names a record is one that is not there.
func invalidBecause(request protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor, reason agent.Reason, format string, args ...any) error {
	name := string(f.Name())
	meta := map[string]string{"field": name}
	switch {
	case name == "id", name == "conversation" && request.Fields().ByName("business") == nil:
		meta[becauseKey], meta[recordKey] = agent.ReasonNotFound, "none"
	case name == "conversation":
		meta[becauseKey] = agent.ReasonNotFound
	case reason != "":
		meta[becauseKey] = reason
	}
	return statusOf(codes.InvalidArgument, codeInvalid, meta, name+": "+fmt.Sprintf(format, args...))
}
