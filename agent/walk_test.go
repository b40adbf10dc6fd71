package agent_test

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
)

// The faults that a business answers a turn with. It keeps its replies: the same
// messageId again gets the same one.
const (
	fine          = "fine"
	lostBefore    = "lost before it ran"
	lostAfter     = "lost after it ran"
	unavailable   = "503"
	refusing      = "not executed"
	limiting      = "429, once"
	still         = "no reply yet, once"
	garbled       = "garbled after it ran"
	noReceipt     = "no receipt"
	unknownTokens = "the delegation is refused"
)

var faults = []string{fine, lostBefore, lostAfter, unavailable, refusing, limiting, still, garbled, noReceipt, unknownTokens}

// step is what an owner, or time, does next.
type step struct{ do, fault string }

func (s step) String() string { return strings.TrimSpace(s.do + " " + s.fault) }

var steps = rapid.Custom(func(t *rapid.T) step {
	s := step{do: rapid.SampledFrom([]string{"change", "change", "inspect", "reconcile", "reconcile", "acknowledge", "wait a minute", "wait a day", "restart"}).Draw(t, "do")}
	switch s.do {
	case "change", "inspect", "reconcile":
		s.fault = rapid.SampledFrom(faults).Draw(t, "fault")
	}
	return s
})

// walk is a model of what may be so, beside the agent.
type walk struct {
	w     *world
	a     *agent.Agent
	fault string
	again map[string]bool // ids whose passing fault is over
	kept  map[string]map[string]any
	ran   map[string]int // by text
	n     int

	unresolved, evidence bool
}

func newWalk(t *testing.T) *walk {
	m := &walk{w: newWorld(t), again: map[string]bool{}, kept: map[string]map[string]any{}, ran: map[string]int{}}
	m.a = granted(m.w, 55*time.Minute, "trips:cancel")
	m.w.biz.set(func(b *business) { b.answer = m.answer })
	return m
}

func (m *walk) answer(u turn) (int, any) {
	b := m.w.biz
	if u.delegation == "" { // introductions
		return 0, nil
	}
	run := func() map[string]any {
		if m.kept[u.id] == nil {
			m.ran[u.text]++
			reply := b.normal(u)
			if m.fault == noReceipt {
				delete(reply["message"].(map[string]any), "metadata")
			}
			m.kept[u.id] = reply
		}
		return m.kept[u.id]
	}
	first := !m.again[u.id+m.fault]
	m.again[u.id+m.fault] = true
	switch {
	case m.fault == lostBefore:
		return 200, nil
	case m.fault == lostAfter:
		run()
		return 200, nil
	case m.fault == unavailable:
		return 503, "down"
	case m.fault == refusing:
		return 400, a2aError(400, "CONTENT_TYPE_NOT_SUPPORTED", "no")
	case m.fault == limiting && first:
		return 429, header("Retry-After", "1")
	case m.fault == still && first:
		run()
		return 400, a2aError(400, "INVALID_PARAMS", "There is no reply yet")
	case m.fault == garbled:
		run()
		return 200, "<html>"
	case m.fault == unknownTokens:
		return 401, header("WWW-Authenticate", `Bearer error="invalid_token"`)
	}
	return 200, run()
}

// take does a step and says what of the rules it breaks, or nothing.
func (m *walk) take(t *testing.T, s step) string {
	m.fault = s.fault
	turns := len(m.w.biz.sent())
	switch s.do {
	case "wait a minute":
		time.Sleep(time.Minute)
	case "wait a day":
		time.Sleep(25 * time.Hour)
	case "restart":
		m.a = m.w.open()
	case "acknowledge":
		return m.acknowledge(t)
	case "reconcile":
		r, err := m.a.Reconcile(t.Context(), m.w.person(), agent.ReconcileRequest{})
		switch {
		case err != nil:
			return err.Error()
		case r.Status == agent.StatusReplied && !m.unresolved:
			return "it reconciled what was settled"
		case r.Status == agent.StatusReplied:
			m.unresolved = false
			m.judge(r)
		case !m.unresolved && r.Reason != agent.ReasonNothingToReconcile:
			return fmt.Sprintf("nothing was to be reconciled: %s %s", r.Status, r.Reason)
		}
	case "change", "inspect":
		m.n++
		text := fmt.Sprintf("Cancel booking %d", m.n)
		if s.do == "inspect" {
			text = fmt.Sprintf("Show booking %d", m.n)
		}
		r, err := m.a.Send(t.Context(), m.w.person(), agent.SendRequest{Business: cardURL, Message: text, Scopes: []string{"trips:cancel"}})
		if err != nil {
			return err.Error()
		}
		return m.sent(text, r, len(m.w.biz.sent())-turns)
	}
	return ""
}

// sent holds the end of a send to CV-4, CV-11, EV-5 and EV-6. A permission that
// changes something makes an inspection a change (AD-8).
func (m *walk) sent(text string, r agent.Result, turns int) string {
	switch {
	case m.unresolved && (r.Reason != agent.ReasonUnresolved || turns > 0):
		return fmt.Sprintf("%q was not held back by an unknown outcome: %s %s", text, r.Status, r.Reason)
	case !m.unresolved && m.evidence && (r.Reason != agent.ReasonEvidenceReview || turns > 0):
		return fmt.Sprintf("%q was not held back by evidence: %s %s", text, r.Status, r.Reason)
	}
	switch r.Status {
	case agent.StatusReplied:
		if m.ran[text] != 1 {
			return fmt.Sprintf("%q is replied and ran %d times", text, m.ran[text])
		}
		m.judge(r)
	case agent.StatusUnknown:
		m.unresolved = true
	default:
		if m.ran[text] != 0 {
			return fmt.Sprintf("%q ended %s %s, and ran", text, r.Status, r.Reason)
		}
	}
	return ""
}

func (m *walk) judge(r agent.Result) {
	if r.Evidence == nil || r.Evidence.Verdict != agent.VerdictVerified {
		m.evidence = true
	}
}

func (m *walk) acknowledge(t *testing.T) string {
	items, err := m.a.Reviews(t.Context(), owner(), false)
	if err != nil {
		return err.Error()
	}
	operations := 0
	for _, item := range items {
		if item.Kind == agent.ReviewOperation {
			operations++
		}
		switch _, err := m.a.Acknowledge(t.Context(), owner(), item.ID); {
		case err == nil && item.Kind == agent.ReviewOperation:
			m.unresolved = false
		case err == nil:
			m.evidence = false
		case agent.ReasonOf(err) != agent.ReasonReconcileFirst:
			return err.Error()
		}
	}
	if operations > 1 {
		return fmt.Sprintf("%d operations of unknown outcome", operations)
	}
	return ""
}

// CV-4, CV-11, CV-12, CV-14, CV-15, EV-5, EV-6, EV-7, GR-8: whatever a business does
// and in whatever order the owner goes on, nothing runs twice, what is told to have
// failed did not run, and what is held back is not sent.
func TestWalk(t *testing.T) {
	t.Parallel()
	checks := flag.Lookup("rapid.checks").Value
	if whole := checks.String(); stride > 1 && whole == "100" { // the default, which takes long here
		if err := checks.Set(strconv.Itoa(100 / stride)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = checks.Set(whole) }()
	}
	rapid.Check(t, func(rt *rapid.T) {
		taken := rapid.SliceOfN(steps, 1, 7).Draw(rt, "steps")
		broken := ""
		bubble.Test(t, func(t *testing.T) {
			m := newWalk(t)
			for i, s := range taken {
				if broken = m.take(t, s); broken == "" {
					for text, n := range m.ran {
						if n > 1 {
							broken = fmt.Sprintf("%q ran %d times", text, n)
						}
					}
				}
				if broken != "" {
					broken = fmt.Sprintf("%v: step %d: %s", taken, i, broken)
					return
				}
			}
		})
		if broken != "" {
			rt.Fatal(broken)
		}
	})
}
