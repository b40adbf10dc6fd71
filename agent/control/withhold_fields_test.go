package control

import (
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// A business that picks a code like one of this program's own words, or like an id, takes
// that out of its own words alone (DA-15).
func TestOwnWordsStay(t *testing.T) {
	for _, c := range []struct {
		field   string
		in      proto.Message
		text    func(proto.Message) string
		remains bool
	}{
		{"an approval's effect", &agentv1.Approval{Effect: "x"}, func(m proto.Message) string { return m.(*agentv1.Approval).Effect }, true},
		{"an approval's message", &agentv1.Approval{Message: "x"}, func(m proto.Message) string { return m.(*agentv1.Approval).Message }, false},
		{"an approval's destination", &agentv1.Approval{Destination: "x"}, func(m proto.Message) string { return m.(*agentv1.Approval).Destination }, false},
		{"a permission's id", &agentv1.Approval{Permissions: []*agentv1.Scope{{Id: "x"}}}, func(m proto.Message) string { return m.(*agentv1.Approval).Permissions[0].Id }, false},
		{"what counts of it", &agentv1.Approval{Permissions: []*agentv1.Scope{{Cut: &agentv1.Cut{Effect: "x"}}}}, func(m proto.Message) string { return m.(*agentv1.Approval).Permissions[0].Cut.Effect }, true},
		{"a scope", &agentv1.Approval{Scopes: []string{"x"}}, func(m proto.Message) string { return m.(*agentv1.Approval).Scopes[0] }, false},
		{"a skill's id", &agentv1.Business{Skills: []*agentv1.Skill{{Id: "x"}}}, func(m proto.Message) string { return m.(*agentv1.Business).Skills[0].Id }, false},
		{"a business's id", &agentv1.Business{Id: "x"}, func(m proto.Message) string { return m.(*agentv1.Business).Id }, true},
		{"a business's name", &agentv1.Business{Name: "x"}, func(m proto.Message) string { return m.(*agentv1.Business).Name }, false},
		{"whom progress is of", &agentv1.Progress{Business: "x"}, func(m proto.Message) string { return m.(*agentv1.Progress).Business }, false},
		{"a kind", &agentv1.Progress{Kind: "x"}, func(m proto.Message) string { return m.(*agentv1.Progress).Kind }, true},
		{"a result's status", &agentv1.Result{Status: "x"}, func(m proto.Message) string { return m.(*agentv1.Result).Status }, true},
		{"a result's detail", &agentv1.Result{Detail: "x"}, func(m proto.Message) string { return m.(*agentv1.Result).Detail }, false},
		{"a reply", &agentv1.Result{Reply: "x"}, func(m proto.Message) string { return m.(*agentv1.Result).Reply }, false},
		{"a result's approval", &agentv1.Result{Approval: &agentv1.Approval{BusinessName: "x"}}, func(m proto.Message) string { return m.(*agentv1.Result).Approval.BusinessName }, false},
		{"a turn's reply", &agentv1.Transcript{Turns: []*agentv1.TranscriptTurn{{Reply: &agentv1.Untrusted{Text: "x"}}}}, func(m proto.Message) string { return m.(*agentv1.Transcript).Turns[0].Reply.Text }, false},
		{"a turn's message", &agentv1.Transcript{Turns: []*agentv1.TranscriptTurn{{Message: "x"}}}, func(m proto.Message) string { return m.(*agentv1.Transcript).Turns[0].Message }, true},
		{"a conversation's context", &agentv1.Conversation{ContextId: "x"}, func(m proto.Message) string { return m.(*agentv1.Conversation).ContextId }, false},
		{"a sign-in's wording", &agentv1.AuthorizationStatus{Text: "x"}, func(m proto.Message) string { return m.(*agentv1.AuthorizationStatus).Text }, true},
		{"a turn's text", &agentv1.Message{Text: "x"}, func(m proto.Message) string { return m.(*agentv1.Message).Text }, false},
		{"a provider's origin", &agentv1.Provider{Origin: "x"}, func(m proto.Message) string { return m.(*agentv1.Provider).Origin }, true},
		{"its audience", &agentv1.Provider{Audience: "x"}, func(m proto.Message) string { return m.(*agentv1.Provider).Audience }, true},
		{"its label", &agentv1.Provider{Label: "x"}, func(m proto.Message) string { return m.(*agentv1.Provider).Label }, true},
		{"an audience", &agentv1.Status{Audiences: map[string]string{"https://air.example": "x"}}, func(m proto.Message) string { return m.(*agentv1.Status).Audiences["https://air.example"] }, true},
		{"an identity", &agentv1.Status{Identity: &agentv1.Identity{Mode: "x"}}, func(m proto.Message) string { return m.(*agentv1.Status).Identity.Mode }, true},
	} {
		mapTexts(c.in.ProtoReflect(), "", func(_, _ string) string { return agent.Redacted })
		if got := c.text(c.in); (got == "x") != c.remains {
			t.Errorf("%s is told as %q", c.field, got)
		}
	}
	// Of each text it is told whose it is, as far as that is known.
	said := map[string]string{}
	list := &agentv1.ListConversationsResponse{Conversations: []*agentv1.Conversation{
		{Business: "b-1", BusinessName: "one", Messages: []*agentv1.Message{{Text: "its message"}}}, {Business: "b-2", BusinessName: "two"},
	}}
	for _, m := range []proto.Message{
		list, &agentv1.Business{Id: "b-3", Name: "three", Scopes: []*agentv1.Scope{{Id: "a scope"}}}, &agentv1.Progress{Business: "a name"},
		&agentv1.OperationUpdate{Update: &agentv1.OperationUpdate_Result{Result: &agentv1.Result{Business: "b-4", Reply: "a reply"}}},
	} {
		mapTexts(m.ProtoReflect(), "", func(business, text string) string { said[text] = business; return text })
	}
	for text, want := range map[string]string{"one": "b-1", "its message": "b-1", "two": "b-2", "three": "b-3", "a scope": "b-3", "a name": "", "a reply": "b-4"} {
		if got, told := said[text]; !told || got != want {
			t.Errorf("%s is of %q", text, got)
		}
	}
	for name := range theirs {
		if _, field, _ := strings.Cut(name, "."); !ours[field] {
			t.Errorf("%s is an exception from nothing", name)
		}
	}

	err := hideError(toStatus(&agent.Refusal{Status: agent.StatusBlocked, Reason: agent.ReasonInvalidInput, Detail: "BLOCKED"}), func(_, _ string) string { return agent.Redacted })
	reason, meta := infoOf(status.Convert(err))
	if reason != codeRefused || meta["status"] != string(agent.StatusBlocked) || meta["reason"] != agent.ReasonInvalidInput || meta["detail"] != agent.Redacted ||
		status.Convert(err).Message() != agent.Redacted {
		t.Errorf("a refusal is told as %v with %s %v", err, reason, meta)
	}
}
