package sandbox

import (
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func TestLarklineReplies(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	all := []string{scopeUpcoming, scopeHistory, scopeRebook, scopeCancel}
	brand := Larkline(at)
	var memory jsontext.Value
	say := func(text string, scopes ...string) Reply {
		t.Helper()
		turn := Turn{Text: text, At: at, Scopes: scopes}
		if len(scopes) > 0 {
			turn.User, turn.Memory = "lark-4471", memory
		}
		r, err := brand.Respond(t.Context(), turn)
		if err != nil {
			t.Fatal(err)
		}
		if r.Memory != nil {
			memory = r.Memory
		}
		return r
	}
	for text, missing := range map[string]string{
		"Hello, I write on behalf of a user.": "", "What can you do?": "", "Is LK 204 on time?": "", "bye": "",
		"Show my upcoming flights": scopeUpcoming, "Can you check my upcoming flights?": scopeUpcoming,
		"Is my Friday flight on time?": scopeUpcoming, "my past flights": scopeHistory,
		"Please rebook me onto SK 318": scopeRebook, "Move my flight to the evening": scopeRebook,
		"cancel booking LKBCDF": scopeCancel,
	} {
		r := say(text)
		if strings.Join(r.Missing, " ") != missing || (missing == "") != (r.Text != "") {
			t.Errorf("%q: missing %v, text %q; want %q", text, r.Missing, r.Text, missing)
		}
		if missing != "" && say(text, all...).Missing != nil {
			t.Errorf("%q: still missing with everything allowed", text)
		}
	}
	memory = nil
	listed := say("Show my upcoming flights", scopeUpcoming)
	if strings.Count(listed.Text, "\n- LK") != 2 || !strings.Contains(listed.Text, "LK 204 Lisbon–Oslo, Tue 8 Dec 2026 09:40 UTC") {
		t.Fatalf("%s", listed.Text)
	}
	if past := say("my past flights", scopeHistory); strings.Count(past.Text, "\n- LK") != 2 {
		t.Errorf("%s", past.Text)
	}
	ref := bookingRef.FindString(listed.Text)

	did := say("Rebook "+ref+" onto LK318", scopeRebook)
	if !strings.HasPrefix(did.Text, "Rebooked. "+ref+": LK 318 ") || len(did.Actions) != 1 {
		t.Errorf("%+v", did)
	}
	if again := say("Rebook "+ref+" onto LK 318", scopeRebook); !strings.HasPrefix(again.Text, "Nothing to do") || len(again.Actions) > 0 {
		t.Errorf("%+v", again)
	}
	if no := say("Rebook "+ref+" onto LK 319", scopeRebook); !strings.Contains(no.Text, "stays as it is") || len(no.Actions) > 0 {
		t.Errorf("%+v", no)
	}
	if back := say("Rebook me", scopeRebook); !strings.HasPrefix(back.Text, "Rebooked. "+ref+": LK 204 ") {
		t.Errorf("%+v", back)
	}
	if did := say("Cancel "+ref, scopeCancel); !strings.HasPrefix(did.Text, "Cancelled. "+ref) || len(did.Actions) != 1 {
		t.Errorf("%+v", did)
	}
	if again := say("Cancel "+ref, scopeCancel); len(again.Actions) > 0 || !strings.HasPrefix(again.Text, "Nothing to do") {
		t.Errorf("%+v", again)
	}
	if no := say("Rebook "+ref, scopeRebook); len(no.Actions) > 0 {
		t.Errorf("a cancelled flight was rebooked: %+v", no)
	}
	if next := say("Cancel my next flight", scopeCancel); !strings.HasPrefix(next.Text, "Cancelled.") || strings.Contains(next.Text, ref) {
		t.Errorf("%+v", next)
	}
	if none := say("Cancel my next flight", scopeCancel); len(none.Actions) > 0 {
		t.Errorf("%+v", none)
	}
	if list := say("Show my upcoming flights", scopeUpcoming); strings.Count(list.Text, ", cancelled") != 2 {
		t.Errorf("%s", list.Text)
	}
}

func TestMarrowReplies(t *testing.T) {
	for text, want := range map[string]string{
		"hello": "This is Marrow Books.", "Where is my order?": "Orders leave the shop", "When do you open?": "Monday",
		"Do you have the sea atlas?": "3 left", "Letters from the Lighthouse, please": "sold out", "What is in stock?": "\n- ",
	} {
		if got := bookshop(text).Text; !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q in it", text, got, want)
		}
	}
}
