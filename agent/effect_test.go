package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
)

func TestEffectVectors(t *testing.T) {
	type file struct {
		Cases []struct {
			Declared, Text, Want string
			Scope                *agent.Scope
		}
	}
	vectors(t, "effects.json", func(t *testing.T, f file) {
		atLeastOne(t, len(f.Cases))
		for _, c := range f.Cases {
			name := c.Declared + " " + c.Text
			if c.Scope != nil {
				name += c.Scope.ID
			}
			t.Run(name, func(t *testing.T) {
				var got agent.Effect
				if c.Scope != nil {
					got = agent.ClassifyScope(c.Scope.ID, c.Scope.Description)
					if c.Text != "" {
						got = agent.EffectOf(c.Declared, c.Text, []agent.Scope{*c.Scope})
					}
				} else {
					got = agent.EffectOf(c.Declared, c.Text, nil)
				}
				if got.String() != c.Want {
					t.Errorf("got %s, want %s", got, c.Want)
				}
			})
		}
	})
}

// TestClassifyText covers AD-6 and AD-7: every listed word, and none that only
// looks like one.
func TestClassifyText(t *testing.T) {
	for _, w := range []string{
		"cancel", "refund", "rebook", "reschedule", "change", "modify", "update", "edit", "delete", "remove",
		"book", "reserve", "buy", "purchase", "pay", "transfer", "submit", "approve", "confirm", "upgrade",
		"downgrade", "subscribe", "unsubscribe", "renew", "redeem", "write", "close", "terminate", "stop",
		"withdraw", "ship", "reorder", "place an order", "send it", "send them", "send my", "send the",
		"return it", "return them", "return my", "return the",
	} {
		if got := agent.ClassifyText("please " + w + " now"); got != agent.EffectChange {
			t.Errorf("%q: %v", w, got)
		}
	}
	for _, w := range []string{
		"read", "view", "list", "look up", "status", "history", "check", "see", "show", "get", "find",
		"search", "track", "inspect", "upcoming", "past", "balance", "receipt", "receipts",
	} {
		if got := agent.ClassifyText("please " + w + " now"); got != agent.EffectInspect {
			t.Errorf("%q: %v", w, got)
		}
	}
	for text, want := range map[string]agent.Effect{
		// No stems, no inflections (AD-6), no bare nouns (AD-7).
		"my bookings":                          agent.EffectUnknown,
		"my booking":                           agent.EffectUnknown,
		"the payment":                          agent.EffectUnknown,
		"an order":                             agent.EffectUnknown,
		"orders":                               agent.EffectUnknown,
		"return policy":                        agent.EffectUnknown,
		"returns":                              agent.EffectUnknown,
		"send":                                 agent.EffectUnknown,
		"a refundable ticket":                  agent.EffectUnknown,
		"Was my flight cancelled?":             agent.EffectInspect,
		"When does the change happen?":         agent.EffectChange,
		"Is my booking confirmed?":             agent.EffectInspect,
		"Are you closed on Sunday?":            agent.EffectInspect,
		"Show my payments":                     agent.EffectInspect,
		"What is the shipping cost?":           agent.EffectInspect,
		"Show the facebook page":               agent.EffectInspect,
		"look at it":                           agent.EffectUnknown,
		"looking up":                           agent.EffectUnknown,
		"receipts please":                      agent.EffectInspect,
		"Where may I send?":                    agent.EffectInspect,
		"Did you return a call?":               agent.EffectInspect,
		"What is your policy for return them?": agent.EffectChange,
		"place the order":                      agent.EffectUnknown,
		"I would like to place an order":       agent.EffectChange,
		"place an orderly queue":               agent.EffectUnknown,
		// Case, punctuation, what joins words.
		"CANCEL!":           agent.EffectChange,
		"(cancel)":          agent.EffectChange,
		"check-then-cancel": agent.EffectChange,
		"cancel_order":      agent.EffectChange,
		"return: my parcel": agent.EffectChange,
		"look\nup my order": agent.EffectInspect,
		"Don't cancel":      agent.EffectChange,
		"ｃａｎｃｅｌ it":         agent.EffectChange,
		"can\u200bcel it?":  agent.EffectChange,
		"can\u00adcel it?":  agent.EffectChange,
		// What nobody sees, marks, letters of other scripts, words taken apart.
		"canc\u034fel my booking?":     agent.EffectChange,
		"canc\ufe0fel booking, check":  agent.EffectChange,
		"can\u180bcel?":                agent.EffectChange,
		"can\u17b4cel?":                agent.EffectChange,
		"can\u3164cel?":                agent.EffectChange,
		"can\u2800cel?":                agent.EffectChange,
		"canc\U000e0101el?":            agent.EffectChange,
		"canc\u0332el?":                agent.EffectChange,
		"cáncél it?":                   agent.EffectChange,
		"c\u0430ncel it?":              agent.EffectChange,
		"\u0440\u0430\u0443 it?":       agent.EffectChange,
		"c-a-n-c-e-l my trip?":         agent.EffectChange,
		"c a n c e l my trip?":         agent.EffectChange,
		"can\ncel my trip?":            agent.EffectChange,
		"can-cel my trip?":             agent.EffectChange,
		"can'cel my booking?":          agent.EffectChange,
		"can\u2019cel my booking?":     agent.EffectChange,
		"p'a'y it?":                    agent.EffectChange,
		"N'y a-t-il pas de place ?":    agent.EffectInspect,
		"R.S.V.P. by when?":            agent.EffectInspect,
		"Is it A/B/C/D?":               agent.EffectInspect,
		"Is it a b c d e?":             agent.EffectUnknown,
		"It's today's last, isn't it?": agent.EffectInspect,
		"c-a-l-l o-f-f my trip?":       agent.EffectUnknown,
		"st\u043ern it?":               agent.EffectUnknown,
		"Show this week's top offers":  agent.EffectInspect,
		"What's today's top deal?":     agent.EffectInspect,
		"Can I fly to the U.S.A.?":     agent.EffectInspect,
		"Покажи мои поездки?":          agent.EffectInspect,
		"5 μm or 7 at Ω?":              agent.EffectUnknown,
		"旅行を見せてPACTで?":                 agent.EffectInspect,
		"Where is it? ":                agent.EffectInspect,
		"Where is it？":                 agent.EffectInspect,
		"Where? Tell me":               agent.EffectUnknown,
		"?":                            agent.EffectInspect,
		"":                             agent.EffectUnknown,
		"   ":                          agent.EffectUnknown,
		"Check whether to cancel?":     agent.EffectChange,
		// Letters and digits that pass for others.
		"ᴄᴀɴᴄᴇʟ my booking?":            agent.EffectChange,
		"🅲🅰🅽🅲🅴🅻 my booking?":            agent.EffectChange,
		"🅒🅐🅝🅒🅔🅛 my booking?":            agent.EffectChange,
		"Ⓒⓐⓝⓒⓔⓛ my booking?":            agent.EffectChange,
		"🄐🄑 🄒🄐🄝🄒🄔🄛 it?":                 agent.EffectChange,
		"🇨🇦🇳🇨🇪🇱 my booking?":            agent.EffectChange,
		"c4nc3l my booking?":            agent.EffectChange,
		"canceI my booking, see":        agent.EffectChange,
		"cance1 my booking?":            agent.EffectChange,
		"b00k it?":                      agent.EffectChange,
		"5hip it?":                      agent.EffectChange,
		"ƈancel my booking?":            agent.EffectChange,
		"bøøk it?":                      agent.EffectChange,
		"can\u02bccel it?":              agent.EffectChange,
		"ǃcancel my booking?":           agent.EffectUnknown,
		"ᏟᎪᏁᏟᎬᏞ it?":                    agent.EffectUnknown,
		"ᑕᗩᑎᑕᕮᒪ it?":                    agent.EffectUnknown,
		"⠉⠁⠝⠉⠑⠇ it?":                    agent.EffectUnknown,
		"Where is flight LK204?":        agent.EffectInspect,
		"Show flight LK 204":            agent.EffectInspect,
		"Is seat A1 free?":              agent.EffectInspect,
		"Show my MP3 files":             agent.EffectInspect,
		"Is it open for 30h?":           agent.EffectInspect,
		"Show flights to 🇫🇷 and 🇮🇹?":    agent.EffectInspect,
		"Show my trips? 🙂":              agent.EffectInspect,
		"Show order 5O0-17 of 3 books?": agent.EffectInspect,
		"Où est ma commande n° 12 ?":    agent.EffectInspect,
		"Gdzie jest łódź?":              agent.EffectInspect,
		"Hvor er smørrebrødet?":         agent.EffectInspect,
		"Bu nə vaxt açılır?":            agent.EffectInspect,
		"ツアーはいつですか?":                    agent.EffectInspect,
		"متى تغادر رحلة ٢٠٤?":           agent.EffectInspect,
		// What nobody sees may be drawn as a blank, or end a line.
		"Show my list\rcancel my booking":           agent.EffectChange,
		"Show my list\vcancel my booking":           agent.EffectChange,
		"Show my list\fcancel my booking":           agent.EffectChange,
		"Show my list\u3164cancel my booking":       agent.EffectChange,
		"Show my list\uffa0cancel my booking":       agent.EffectChange,
		"Show my list\u2800cancel my booking":       agent.EffectChange,
		"Show my list\u200bcancel my booking":       agent.EffectChange,
		"Show my list\u2063cancel my booking":       agent.EffectChange,
		"Show my list\ufe0fcancel my booking":       agent.EffectChange,
		"Show my list\u00adcancel my booking":       agent.EffectChange,
		"Show my list\rcan\u200bcel my booking":     agent.EffectChange,
		"Show my list\rplace an order":              agent.EffectChange,
		"Show it, place an or\u00adder":             agent.EffectChange,
		"st\u200b\u043e\u200brn it?":                agent.EffectUnknown,
		"sho\u00adw my trips":                       agent.EffectUnknown,
		"Show my trips\r\nto Rome":                  agent.EffectInspect,
		"Show my trips \u2708\ufe0f":                agent.EffectInspect,
		"\U0001f468\u200d\U0001f469 Show our trips": agent.EffectInspect,
		"پروازهای من کجا می\u200cروند?":             agent.EffectInspect,
		// Words beside letters of a script without blanks, digits, and signs that are letters.
		"帮我cancel掉LKDHCK?":     agent.EffectChange,
		"LKDHCKをcancelして?":     agent.EffectChange,
		"LKDHCK cancel해줘?":     agent.EffectChange,
		"ช่วยcancelให้หน่อย?":  agent.EffectChange,
		"وcancel الحجز?":       agent.EffectChange,
		"我的订单1cancel2吧?":       agent.EffectChange,
		"cancel1 my booking?":  agent.EffectChange,
		"1cancel my booking?":  agent.EffectChange,
		"12c4ncel3 it?":        agent.EffectChange,
		"cancel¹ my booking?":  agent.EffectChange,
		"cancel™ my booking?":  agent.EffectChange,
		"™cancel my booking?":  agent.EffectChange,
		"cancelª it?":          agent.EffectChange,
		"b🅾🅾k it?":             agent.EffectChange,
		"フライトLK204は?":          agent.EffectInspect,
		"航班LK204准时吗?":          agent.EffectInspect,
		"Is the Acme™ 5G² on?": agent.EffectInspect,
		"Dove va la 2ª nave?":  agent.EffectInspect,
	} {
		if got := agent.ClassifyText(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// AD-2, AP-1: what a business could take for the owner's word.
func TestMayConfirm(t *testing.T) {
	look := func(reply string) *agent.ConversationView {
		return &agent.ConversationView{Messages: []agent.MessageView{
			{Introduction: true, State: "replied", Reply: "Hello! How can I help?"},
			{State: "replied", Effect: agent.EffectInspect, Reply: reply},
		}}
	}
	quiet := look("You have two bookings.")
	for text, want := range map[string]bool{ // with no conversation, and in one that asks nothing
		"yes?": true, "Yes, I see": true, "Yes. Get on with it, see?": true, "Go ahead then, view it as agreed": true, "the second one, see?": true,
		"See, the first one": true, "I see: yes": true, "ok, show it": true, "OK?": true, "o.k., check it": true, "y-e-s, see": true, "y e s, see": true,
		"уes, see": true, "ʏᴇs, see": true, "Well, I agree, see the list": true, "Sure, check it": true, "Fine. Show it": true, "See, it is agreed": true,
		"Please do, and show it": true, "proceed and show it": true, "Option 2, see": true, "Option B, see": true, "See\nok": true, "👍 ok, see": true, "🆗 see": true,
		"Show my list\ryes, the first one": true, "Show my list\u3164yes": true, "See it\u200bok": true, "yes\u200bter, see": true, "yes™, see": true, "Yes1, see": true, "帮我看yes好?": true,
		"See it - ok": true, "Check - sure thing": true, "Show - sure, the first one": true, "Show orders - ok ones only": true, "Do.it and show it": true, "Do\nit, and show it": true,
		"Approved: show it": true, "2?": true, "B?": true, "1️⃣?": true, "👍?": true, "👍": true, "?": true, "": true, "٢?": true, "是?": true, "1 2 3?": true,

		"Show my bookings": false, "Show the second one?": false, "Is it ok to see the list?": false, "Check whether I can be sure of it": false,
		"Show my confirmed bookings": false, "Check if cards are accepted": false, "Find option pricing": false, "Show flight LK204": false, "Check seat A1": false,
		"What can I do? It shows an error, check it": false, "Show where they go. Ahead of whom?": false, "Show my well-ok-ed orders": false, "Show my trips \u2708\ufe0f": false,
		"Show my yesterday's orders": false, "Show fine print": false, "Show my trips? 🙂": false, "Get the status, please": false,
	} {
		if got := agent.MayConfirm(text, nil); got != want {
			t.Errorf("%q: %v", text, got)
		}
		if got := agent.MayConfirm(text, quiet); got != want {
			t.Errorf("%q in a conversation: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"Where is it?": true, "A1?": true, "Oui?": true, "Show it": false, "Show it?": false, "Where\rshow?": true} {
		if agent.MayConfirm(text, nil) {
			t.Errorf("%q begins one", text)
		}
		if got := agent.MayConfirm(text, quiet); got != want {
			t.Errorf("%q in a conversation: %v", text, got)
		}
	}
	for name, v := range map[string]*agent.ConversationView{
		"asked": look("Shall I cancel it?"), "asked in the midst": look("Shall I? Say so."), "asked in full width": look("よろしいですか？"), "asked in Arabic": look("هل ألغيه؟"),
		"asked in Greek": look("Να το ακυρώσω;"), "asked in Greek, its own mark": look("Ok\u037e"), "asked in Armenian": look("Չեղարկե՞լ"), "asked by an emoji": look("LKDHCK ❓"),
		"asked, double": look("Cancel⁇"), "withheld": look(agent.Redacted), "withheld in part": look("Shall I cancel it" + agent.Redacted), "asked behind a link": look("Shall I cancel https://air.example/t?id=3?"),
		"asked in a link's query": look("https://air.example/t?id=3&Shall-I?"), "asked beside a link": look("https://air.example/t よろしいですか？ https://air.example/t?id=3"), "asked right behind a link": look("https://air.example/tよろしいですか？t?id=3"),
		"cut":     look(strings.Repeat("a", 20000)),
		"no text": look(""), "nothing to see": look(" \u200b\n"), "more than text": look("Two trips.\n[parts that are not text are left out]"),
		"a change": {Messages: []agent.MessageView{{State: "replied", Effect: agent.EffectChange}, {State: "replied", Effect: agent.EffectInspect, Reply: "Done."}}},
		"unknown":  {Messages: []agent.MessageView{{State: "replied", Effect: agent.EffectUnknown}}},
		"lost":     {Messages: []agent.MessageView{{State: "outcome_unknown", Effect: agent.EffectInspect}}},
		"asked before the last, which brought no reply": {Messages: []agent.MessageView{
			{State: "replied", Effect: agent.EffectInspect, Reply: "Shall I?"}, {State: "failed", Effect: agent.EffectInspect},
		}},
	} {
		if !agent.MayConfirm("Show the list", v) {
			t.Errorf("%s: a look", name)
		}
	}
	for name, reply := range map[string]string{"a semicolon": "Two trips; one flight.", "a link": "It is at https://air.example/t?id=3&lang=en (or http://air.example?x.y=%20).", "answered since": "Done."} {
		v := look(reply)
		if name == "answered since" {
			v.Messages = append([]agent.MessageView{{State: "replied", Effect: agent.EffectInspect, Reply: "Which?"}}, v.Messages...)
		}
		if agent.MayConfirm("Show the list", v) {
			t.Errorf("%s: no look", name)
		}
	}
}

// TestClassifyScope covers AD-8.
func TestClassifyScope(t *testing.T) {
	for _, c := range []struct {
		id, description string
		want            agent.Effect
	}{
		{"flights:upcoming:read", "View upcoming flights", agent.EffectInspect},
		{"flights:rebook", "Rebook flights", agent.EffectChange},
		{"flights_history", "", agent.EffectInspect},
		{"orders.write", "", agent.EffectChange},
		{"orders:read", "Look up and cancel", agent.EffectChange},
		{"orders:manage", "Manage orders", agent.EffectUnknown},
		{"lookup", "", agent.EffectUnknown},
		{"orders:check", "Check orders", agent.EffectUnknown}, // an inspect word of texts, not a read word
		{"x", "Look", agent.EffectInspect},
		{"x", "Place an order", agent.EffectChange},
		{"x", "Really?", agent.EffectUnknown},
		{"readonly", "", agent.EffectUnknown},
		{"", "", agent.EffectUnknown},
	} {
		if got := agent.ClassifyScope(c.id, c.description); got != c.want {
			t.Errorf("%q %q: %v, want %v", c.id, c.description, got, c.want)
		}
	}
}

// TestEffectOf covers AD-5: the strongest wins, and nothing lowers.
func TestEffectOf(t *testing.T) {
	read, cancel, odd := agent.Scope{ID: "read"}, agent.Scope{ID: "cancel"}, agent.Scope{ID: "acct"}
	for _, c := range []struct {
		declared, text string
		scopes         []agent.Scope
		want           agent.Effect
	}{
		{"", "show it", nil, agent.EffectInspect},
		{"inspect", "show it", []agent.Scope{read}, agent.EffectInspect},
		{"inspect", "show it", []agent.Scope{read, cancel}, agent.EffectChange},
		{"inspect", "show it", []agent.Scope{odd}, agent.EffectUnknown},
		{"change", "hello", nil, agent.EffectUnknown},
		{"unknown", "show it", nil, agent.EffectUnknown},
		{"INSPECT", "show it", nil, agent.EffectUnknown},
		{"inspect ", "show it", nil, agent.EffectUnknown},
	} {
		if got := agent.EffectOf(c.declared, c.text, c.scopes); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`([a-z]{1,6} |cancel |show |send my ){0,6}\??`).Draw(t, "text")
		declared := rapid.SampledFrom([]string{"", "inspect", "change", "unknown", "x"}).Draw(t, "declared")
		got := agent.EffectOf(declared, text, nil)
		if got < agent.ClassifyText(text) || declared != "" && got < agent.ParseEffect(declared) {
			t.Fatalf("%q %q: %v", declared, text, got)
		}
	})
}

func TestEffectText(t *testing.T) {
	for _, e := range []agent.Effect{agent.EffectInspect, agent.EffectChange, agent.EffectUnknown} {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back agent.Effect
		if err := json.Unmarshal(data, &back); err != nil || back != e {
			t.Errorf("%s: %v, %v", data, back, err)
		}
	}
	var e agent.Effect
	if err := e.UnmarshalText([]byte("destroy")); err == nil {
		t.Error("an effect outside the enum is read")
	}
	if e.String() != "unknown" {
		t.Errorf("the zero value reads as %v", e)
	}
}
