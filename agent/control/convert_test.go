package control

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// pair is a view and its message.
type pair struct {
	view    any
	message proto.Message
	there   func(any) (proto.Message, error)
	back    func(proto.Message) (any, error)
}

func paired[V, M any, P messagePtr[M]]() pair {
	return pair{
		*new(V), P(new(M)),
		func(v any) (proto.Message, error) { return messageOf[M, P](v) },
		func(m proto.Message) (any, error) { return viewOf[V](m) },
	}
}

// pairs are all that cross the control plane.
var pairs = []pair{
	paired[agent.StatusView, agentv1.Status](),
	paired[agent.IdentityView, agentv1.Identity](),
	paired[agent.PolicyView, agentv1.Settings](),
	paired[agent.ProviderView, agentv1.Provider](),
	paired[agent.BusinessView, agentv1.Business](),
	paired[agent.Event, agentv1.Progress](),
	paired[agent.Result, agentv1.Result](),
	paired[agent.ConversationView, agentv1.Conversation](),
	paired[agent.Transcript, agentv1.Transcript](),
	paired[agent.AuthorizationView, agentv1.Authorization](),
	paired[agent.GrantView, agentv1.Grant](),
	paired[agent.DisconnectView, agentv1.Disconnection](),
	paired[agent.ReceiptView, agentv1.Receipt](),
	paired[agent.ReviewItem, agentv1.Review](),
	paired[agent.ApprovalView, agentv1.Approval](),
	paired[agent.Check, agentv1.Check](),
	paired[agent.Change, agentv1.ChangeEvent](),
}

// TestRoundTrip holds every view to its message: what is printed of a view is, to the
// byte, what is printed of it after it crossed the wire.
func TestRoundTrip(t *testing.T) {
	for _, p := range pairs {
		t.Run(fmt.Sprintf("%T", p.view), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				v := reflect.New(reflect.TypeOf(p.view))
				fill(rt, v.Elem(), false)
				crosses(rt, p, v.Elem().Interface())
			})
			whole := reflect.New(reflect.TypeOf(p.view))
			rapid.Check(t, func(rt *rapid.T) {
				fill(rt, whole.Elem(), true)
				crosses(rt, p, whole.Elem().Interface())
				m, err := p.there(whole.Elem().Interface())
				if err != nil {
					rt.Fatal(err)
				}
				if f := unset(m.ProtoReflect()); f != "" {
					rt.Fatalf("%s has a field that no view fills: %s", m.ProtoReflect().Descriptor().Name(), f)
				}
			})
			crosses(t, p, p.view) // the zero view
		})
	}
}

// crosses sends a view there and back.
func crosses(t rapid.TB, p pair, v any) {
	t.Helper()
	m, err := p.there(v)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	back, err := p.back(got)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := printed(t, v), printed(t, back); a != b {
		t.Fatalf("printed before and after:\n%s\n%s", a, b)
	}
}

// printed is a view as pactctl -o json prints it, on one line.
func printed(t rapid.TB, v any) string {
	t.Helper()
	doc, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// unset is a field of a message that is not set; the process of a Status is the
// control plane's own.
func unset(m protoreflect.Message) string {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.FullName() == "pact.agent.v1.Status.process":
		case !m.Has(f):
			return string(f.FullName())
		case f.IsMap() || f.Message() == nil || strings.HasPrefix(string(f.Message().FullName()), "google."):
		case f.IsList():
			for j := range m.Get(f).List().Len() {
				if inner := unset(m.Get(f).List().Get(j).Message()); inner != "" {
					return inner
				}
			}
		default:
			if inner := unset(m.Get(f).Message()); inner != "" {
				return inner
			}
		}
	}
	return ""
}

// fill sets a value to what the agent can give, or with whole to one with no empty
// member. A list is absent rather than empty: no message can tell the two apart, and the
// conformance suite sees that no view does.
func fill(t *rapid.T, v reflect.Value, whole bool) {
	some := func() bool { return whole || rapid.Bool().Draw(t, "some") }
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Time{}
		if some() {
			at := rapid.Int64Range(-62135596799, 253402300799).Draw(t, "s") // the years 1 to 9999
			*x = time.Unix(at, rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
		}
		return
	case *agent.Effect:
		*x = rapid.SampledFrom([]agent.Effect{agent.EffectInspect, agent.EffectChange, agent.EffectUnknown}).Draw(t, "effect")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Tag.Get("json") != "-" {
				fill(t, v.Field(i), whole)
			}
		}
	case reflect.Pointer:
		v.SetZero()
		if some() {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), whole)
		}
	case reflect.Slice:
		v.SetZero()
		for range rapid.IntRange(least(whole), 3).Draw(t, "n") {
			e := reflect.New(v.Type().Elem()).Elem()
			fill(t, e, whole)
			v.Set(reflect.Append(v, e))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range rapid.IntRange(least(whole), 3).Draw(t, "n") {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, k, whole)
			fill(t, e, whole)
			v.SetMapIndex(k, e)
		}
	case reflect.String:
		v.SetString(rapid.StringN(least(whole), 20, -1).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(some())
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(int64(least(whole)), 1<<31-1).Draw(t, "number"))
	default:
		t.Fatalf("no views have a %s: say how it is filled", v.Type())
	}
}

func least(whole bool) int {
	if whole {
		return 1
	}
	return 0
}

// TestBytesThatAreNoText: a text that is not UTF-8 does not end an answer.
func TestBytesThatAreNoText(t *testing.T) {
	m, err := messageOf[agentv1.Result](agent.Result{Reply: "a\xffb"})
	if err != nil || m.Reply != "a\uFFFDb" {
		t.Fatalf("%q, %v", m.GetReply(), err)
	}
}

// TestPairsThatDiffer: a member that one side has alone is an error.
func TestPairsThatDiffer(t *testing.T) {
	if _, err := messageOf[agentv1.Grant](agent.AuthorizationView{Purpose: "a trip"}); err == nil {
		t.Error("a view was written as the message of another")
	}
	if _, err := viewOf[agent.GrantView](&agentv1.Authorization{Purpose: "a trip"}); err == nil {
		t.Error("a message was read as the view of another")
	}
}

// TestStatusProcess: what the process is, is the control plane's, and no loss.
func TestStatusProcess(t *testing.T) {
	m := &agentv1.Status{Ready: true, Process: &agentv1.Process{Version: "v1"}}
	v, err := viewOf[agent.StatusView](m)
	if err != nil || !v.Ready || m.Process == nil {
		t.Fatalf("%+v, %v; the message: %v", v, err, m)
	}
}

// TestSignInByHand (DA-14): a sign-in is the one thing whose secrets are written out,
// and whatever prints it does not.
func TestSignInByHand(t *testing.T) {
	const link, code = "https://air.example.com/device?code=SECRET", "WDJB-MJHT"
	rapid.Check(t, func(rt *rapid.T) {
		var in agent.SignIn
		v := reflect.ValueOf(&in).Elem()
		fill(rt, v, true)
		m, err := signInMessage(in)
		if err != nil {
			rt.Fatal(err)
		}
		if f := unset(m.ProtoReflect()); f != "" {
			rt.Fatalf("a member is forgotten: %s", f)
		}
		if out, err := signInView(m); err != nil || !reflect.DeepEqual(in, out) {
			rt.Fatalf("%+v came back as %+v, %v", in, out, err)
		}
	})
	m, err := signInMessage(agent.SignIn{Link: link, UserCode: code})
	if err != nil {
		t.Fatal(err)
	}
	back, err := signInView(m)
	if err != nil || back.Link.Reveal() != link || back.UserCode.Reveal() != code {
		t.Fatal("the link or the code is another one")
	}
	for _, shown := range []string{fmt.Sprint(back), fmt.Sprintf("%+v %#v", back, back), printed(t, back)} {
		if strings.Contains(shown, link) || strings.Contains(shown, code) {
			t.Errorf("a sign-in prints its secrets: %s", shown)
		}
	}
}

// TestApprovalRequest (AP-2): what the owner is shown through the control plane is
// what they are shown without it.
func TestApprovalRequest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var in agent.ApprovalRequest
		fill(rt, reflect.ValueOf(&in).Elem(), rapid.Bool().Draw(rt, "whole"))
		m, err := messageOf[agentv1.Approval](approvalView(in))
		if err != nil {
			rt.Fatal(err)
		}
		v, err := viewOf[agent.ApprovalView](m)
		if err != nil {
			rt.Fatal(err)
		}
		if out := approvalRequest(v); !reflect.DeepEqual(in, out) {
			rt.Fatalf("%+v came back as %+v", in, out)
		}
	})
}
