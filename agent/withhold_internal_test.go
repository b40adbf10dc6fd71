package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// DA-15: a code and a link are found however they are written; what is none of them
// stays as it is.
func TestWithheld(t *testing.T) {
	w := withheld{home: "air.example.com"}
	w.link("https://login.air.example.com/device?user_code=LXGM-QSTW")
	w.link("https://login.air.example.com/device")
	w.link("https://air.example.com/") // where the business is
	w.code("LXGM-QSTW")
	w.code("device0code1of2no3shape")
	w.code("1234")
	w.code("AB.CD")
	deep := "&am" + strings.Repeat("p;am", 50) + "p;#76;XGM-QSTW" // more escapes than are read
	for _, text := range []string{
		"code LXGM-QSTW", "lxgm-qstw", "LXGMQSTW", "L X G M - Q S T W", "L.X.G.M.Q.S.T.W", "LX\u200bGM-QSTW", "L\u2066XGM-QSTW",
		"LXGM\U000e0041-QSTW", "LXGM-QS\u0007TW", "LXGM\ufe0f-QSTW", "LXG\u034fM-QSTW", "L\u0332X\u0332G\u0332M\u0332-QSTW", "ＬＸＧＭ－ＱＳＴＷ",
		"L\u0425GM-QSTW", "LXGM\u2014QSTW", "LXGM\nQSTW", "xLXGM-QSTWx", "L\\-X\\-GM-QSTW", "&#76;XGM-QSTW", "%4CXGM%2DQSTW", "%254CXGM-QSTW",
		"Open https://login.air.example.com/device now", "HTTPS://LOGIN.air.example.com/Device", "login.air.example.com/device",
		"https://login.air.exam\u2066ple.com/device", "https: //login.air.example.com /device", "https%3A%2F%2Flogin.air.example.com%2Fdevice",
		"https:\\/\\/login.air.example.com\\/device",
		"https://login.air.example.com/device\u3092\u958b\u304f", "https://login.air.example.com/device_", "login.air.example.com/device%78",
		"LXGM-QSTW or %4CXGM-QSTW", "%4CXGM-QSTW or LXGM-QSTW", "LXGM-QSTW &#76;XGM&#45;QSTW", "%252525254CXGM-QSTW", deep,
		"ab.cd", "AB.CD", "A B . C D", "AB-CD", "ABCD", "AB\u200b.CD",
		"device0code1of2no3shape", "DEVICE0CODE1OF2NO3SHAPE", "1234", "12 34", "12-34", "1\u200b2-3 4",
	} {
		got := w.hide(text)
		if !strings.Contains(got, Redacted) || got != w.hide(got) {
			t.Errorf("%q: %q", text, got)
		}
		plain := strings.ToLower(Visible(got))
		for _, left := range []string{"qstw", "/device", "of2no3", "34", "cd"} {
			if strings.Contains(plain, left) {
				t.Errorf("%q: %q is left", text, got)
			}
		}
	}
	for _, text := range []string{
		"", "LXGM", "12.34 EUR", "https://air.example.com/message:send", "https://air.example.com/", "device", "a\u200bb", "L.Q.S.T.W", "AB:CD",
		"https://login.air.example.com/devices", "login.air.example.com/device2", "caf\xff %zz &amp; 100%",
	} {
		if got := w.hide(text); got != text {
			t.Errorf("%q: %q", text, got)
		}
	}
	for text, want := range map[string]string{
		"a LXGM-QSTW b":     "a " + Redacted + " b",
		"LXGM-QSTW &amp; é": Redacted + " &amp; é",
		"\xffé LXGM-QSTW é": "\xffé " + Redacted + " é",
		"https://login.air.example.com/device?user_code=LXGM-QSTW or LXGM-QSTW.": Redacted + " or " + Redacted + ".",
	} {
		if got := w.hide(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := (withheld{}).hide("LXGM-QSTW"); got != "LXGM-QSTW" {
		t.Errorf("no sign-in: %q", got)
	}
}

// DA-15: a short code is none in a longer number or word, and signs alone are none.
func TestShortCodes(t *testing.T) {
	for text, want := range map[string]string{
		"LK12345 leaves at 12 34": "LK12345 leaves at " + Redacted, "x1234": "x1234", "1234x, 1234.": "1234x, " + Redacted + ".", "51 234": "51 234",
		"コード1234です": "コード" + Redacted + "です", "5\u200b1234": "5\u200b" + Redacted, "EUR 1 234 5": "EUR " + Redacted + " 5", "ＬＫ１２３４５": "ＬＫ１２３４５",
		"abcde ab cd": "abcde " + Redacted, "Shall I????": "Shall I????", "&#49;2345": "&#49;2345", "&#49;234": Redacted,
	} {
		var w withheld
		w.code("1234")
		w.code("ab-cd")
		w.code("????")
		if got := w.hide(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// DA-15: nothing of what overlaps is left, and each spelling is looked for once.
func TestWithheldHowever(t *testing.T) {
	var w withheld
	w.code("aabaab")
	for text, want := range map[string]string{
		"aabaab": Redacted, "x aabaabaabaab x": "x " + Redacted + " x", "aabaabaab": Redacted, "aabaaa, b": "aabaaa, b",
		"aabaab, aabaab": Redacted, "aabaab\naab": Redacted,
	} {
		if got := w.hide(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	w.link("https://air.example.com/d?c=1")
	w.link("https://air.example.com/d?c=1")
	w.code("aab-aab")
	if len(w.links) != 2 || len(w.codes) != 1 {
		t.Errorf("looks for %+v", w)
	}
	w = withheld{}
	for i := range 10 {
		w.code(strings.Repeat("a", maxSignInText-1-i) + "b")
		w.code(strings.Repeat("a", maxSignInText-1-i))
	}
	for _, text := range []string{strings.Repeat("a", 1<<15), strings.Repeat("a", 1<<15) + "b", "%" + strings.Repeat("25", 1<<15)} {
		if got := w.hide(text); got != Redacted {
			t.Errorf("%d bytes are left", len(got))
		}
	}
}

// DA-15: a link is found by where it leads and by what is secret in it, and a code
// behind escapes, tags and digits of other scripts.
func TestWithheldInOtherSpellings(t *testing.T) {
	const home = "https://evil.example"
	found := func(s authorizationSecret, business string, text string) bool {
		all := signIns{homes: map[string]string{"b-1": home}}
		all.waiting = append(all.waiting, secretOf("b-1", or(business, home), published{name: "Evil"}, s))
		return strings.Contains(all.hide("b-1", text), Redacted)
	}
	path := authorizationSecret{VerificationURI: "https://evil.example/device", VerificationURIComplete: "https://evil.example/s/Kx83hd92kdQ"}
	label := authorizationSecret{VerificationURI: "https://evil.example/device", VerificationURIComplete: "https://k7f3q9m2x8.login.evil.example/"}
	bare := authorizationSecret{VerificationURI: "https://login.evil.example/"}
	address := authorizationSecret{VerificationURI: "https://203.0.113.5/device"}
	local := authorizationSecret{VerificationURI: "http://127.0.0.1:18900/link"}
	short := authorizationSecret{VerificationURI: "https://evil.example/?d=1", VerificationURIComplete: "https://evil.example/x?c=12&d=3"}
	code := authorizationSecret{VerificationURI: "https://evil.example/device", UserCode: "ZQXJ-4821", DeviceCode: "d"}
	for text, s := range map[string]authorizationSecret{
		"Open https://evil.example/s/Kx83hd92kdQ now": path, "evil.example//s/Kx83hd92kdQ": path, "https://evil.example/x/../s/Kx83hd92kdQ": path,
		"https://evil.example./s/Kx83hd92kdQ": path, "https://www.evil.example/s/Kx83hd92kdQ": path, "https://evil.example:443/s/Kx83hd92kdQ": path,
		`https://evil.example/s/Kx83hd92kd\u0051`: path, `\x4bx83hd92kdQ`: path, "K x 8 3 h d 9 2 k d Q": path, "evil.example/s/Kx83hd92kd%51": path,
		"the end of it is kx83hd92kdq": path,

		"https://evil.example./device": path, "http://EVIL.example:443//device/": path, "https://www.evil.example/x/../device?a=b": path, "(https://evil.example/./device)": path,
		`https:\\evil.example\device`: path, "//evil.example/device.": path, "https:evil.example/device": path, "https://me@evil.example/%64evice": path,

		"Open http://k7f3q9m2x8.login.evil.example/ now": label, "k7f3q9m2x8.login.evil.example": label, "K7F3-Q9M2-X8": label, "www.k7f3q9m2x8.login.evil.example.": label,
		"https://evil\u3002example/s/Kx83hd92kd%51": path, "https://evil\uff61example/./device": path, "\u898b\u3002evil\u3002example//device": path,
		"\u898b\u3002evil.example//device": path, strings.Repeat("\u898b", 100) + "\u3002www.evil\u3002example//device\u3002": path, "login\u3002evil.example": bare,
		"https://3405803781/device": address, "https://0xcb.0.113.5/./device": address, "0313.0.28933//device": address, "https://[::ffff:203.0.113.5]/device": address,
		"http://login.evil.example:80": bare, "login.evil.example": bare, "https://www.login.evil.example./": bare,
		"http://localhost:18900/link": local, "http://127.1.2.3/link": local, "http://[::1]:18900/link": local, "http://127.0.0.1.:18900/link": local,
		"evil.example/?x=2&d=1": short, "www.evil.example/y/..?d=2": short, "http://www.evil.example/x": short,

		`Z\u0051XJ-4821`: code, `\u005aQXJ-4821`: code, `Z\x51XJ-4821`: code, `Z\u{51}XJ-4821`: code, "Z%u0051XJ-4821": code, "Z<i></i>QXJ-4821": code,
		"Z<b><i x='1'>QX</i></b>J-4821": code, "Z&lt;i&gt;QXJ-4821": code, `Z\u003ci\u003eQXJ-4821`: code, `Z\u00<i>51XJ-4821`: code, "ZQXJ-٤٨٢١": code, "🆉🆀🆇🅹-4821": code,
		"🅩🅠🅧🅙-4➑➋1": code, "🇿🇶🇽🇯4821": code, "ᴢꞯxᴊ-4821": code,
		"Z" + strings.Repeat("<", 20) + strings.Repeat(">", 20) + "QXJ-4821": code,
		`Z\121XJ-4821`: code, `ZQXJ-\64821`: code, `Z\ud835\udc10XJ-4821`: code, `Z\u{0000000000051}XJ-4821`: code,
		"Z<b title='>x'>QXJ-4821": code, `Z&lt;b title="a>b"&gt;QXJ-4821`: code, "Z<!-- a > b -->QXJ-4821": code, "<a '>Z<i></i>QXJ-4821<b '>": code,
		`<b "> Z<i></i>QXJ-4821`:                   code,
		`<a href="https://evil.example/%64evice">`: code,
	} {
		if !found(s, "", text) {
			t.Errorf("%q is left", text)
		}
	}
	for text, s := range map[string]authorizationSecret{
		"https://evil.example/": path, "https://evil.example/message:send": path, "https://evil.example/devices and device": path, "evil.example/device/help": path,
		"https://air.example/device": path, "https://evil.example/device2": path, "evil.example and /device": path,
		"https://not\u3002evil.example2/device": path, "https://203.0.113.6/device, 3405803781": address,
		"https://login.evil.example/help": bare, "evil.example/": bare, "mylogin.evil.example": bare, "login and evil": bare,
		"https://evil.example": short, "evil.example/?": short, "http://localhost:18900/": local,
		`a < b, c > d \u0041 <b>x</b> C:\x`: code, "4821": code, "login": label, "evil": label,
	} {
		if found(s, "", text) {
			t.Errorf("%q is withheld", text)
		}
	}
}

// DA-15: however hostile a text is, and however many sign-ins wait, each link in it is read
// once. What is allocated shows it: the time it takes is the machine's.
func TestWithheldIsReadOnce(t *testing.T) {
	const signs, length = 20, 20000
	w := signIns{homes: map[string]string{"b-1": "https://x.ab"}}
	for i := range signs {
		link := fmt.Sprintf("https://x.ab/%d/device", i)
		w.waiting = append(w.waiting, secretOf("b-1", "https://x.ab", published{name: "Ab"}, authorizationSecret{VerificationURI: link, VerificationURIComplete: link + "/" + strings.Repeat("x.ab/", 400)}))
	}
	for _, piece := range []string{"x.ab/", "x.ab//", "x.ab/../", "x.ab?", "x.ab/../?", "x.ab:1", "//", "<", "a.", `\u{`, "'.", "x.ab/0/device ", "x.ab/0/./device/", "\ufdfa", "x.ab/0/device,", "a\u3002", "xn--a\u3002", "<'", "<!--"} {
		text := strings.Repeat(piece, length/len(piece))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w.hide("b-1", text)
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / length; each > maxHidden {
			t.Errorf("%q: %d bytes for each of the text", piece, each)
		}
	}
}

// DA-15: what stands behind a link and can hardly be part of it stays; what can, goes.
func TestWhereLinksEnd(t *testing.T) {
	plain := authorizationSecret{VerificationURI: "https://biz.example/device", VerificationURIComplete: "https://biz.example/link/quietly-brown-otter"}
	cyrillic := authorizationSecret{VerificationURI: "https://biz.example/device", VerificationURIComplete: "https://biz.example/\u0441/\u0434\u043e\u043c,\u0434\u043e\u043c"}
	query := authorizationSecret{VerificationURI: "https://biz.example/device", VerificationURIComplete: "https://biz.example/device?pick=quiet|otter"}
	for _, c := range []struct {
		s          authorizationSecret
		text, want string
	}{
		{plain, "\u8bf7\u8bbf\u95eehttps://biz.example/./device\u3002\u60a8\u7684\u822a\u73ed\uff0c\u7f16\u53f7XY123\u3002\u8c22\u8c22", "\u8bf7\u8bbf\u95ee" + Redacted + "\u3002\u60a8\u7684\u822a\u73ed\uff0c\u7f16\u53f7XY123\u3002\u8c22\u8c22"},
		{plain, "https://biz.example/device\u3067\u78ba\u8a8d", Redacted + "\u3067\u78ba\u8a8d"},
		{plain, "(see https://biz.example/device)\u2014is EUR 900\u2014done", "(see " + Redacted + ")\u2014is EUR 900\u2014done"},
		{plain, "https://biz.example/device|Booking|900", Redacted + "|Booking|900"},
		{plain, "https://biz.example/device,but_your_booking", Redacted + ",but_your_booking"},
		{plain, "https://biz.example/device\u2028Your booking", Redacted + "\u2028Your booking"},
		{plain, "https://biz.example/x/../device?a=b\u3002Yes", Redacted + "\u3002Yes"},
		{plain, "https://biz.example/devices, https://biz.example/device/help, https://biz.example/device.", "https://biz.example/devices, https://biz.example/device/help, " + Redacted + "."},
		{plain, "https://biz.example/device.Your booking", Redacted + " booking"},
		{plain, "https://biz.example/link/quietly-brown-otter.Thanks", Redacted},
		{plain, "https://biz.example/link/quietly-brown-otter-or call us", Redacted + " call us"},
		{plain, "_https://biz.example/link/quietly-brown-otter_Thanks", "_" + Redacted},
		{plain, "https://biz.example/./link/quietly-brown-otter.1) a", Redacted + ") a"},
		{plain, "https://biz.example/device.Pick=quietly-brown-otter", Redacted},
		{plain, "https://biz.example/\u5b57/../link/quietly-brown-otter\u3002Yes", Redacted + "\u3002Yes"},
		{plain, "https://biz.example/device,a/../../link/quietly-brown-otter", Redacted},
		{plain, "https://biz.example/device?x=\u5b57&pick=quietly-brown-otter b", Redacted + " b"},
		{plain, "https://biz.example/device?x=\u5b57%26pick%3Dquietly b", Redacted + " b"},
		{cyrillic, "https://biz.example/./\u0441/\u0434\u043e\u043c,\u0434\u043e\u043c b", Redacted + " b"},
		{cyrillic, "https://biz.example/./c/%D0%B4%D0%BE%D0%BC,\u0434\u043e\u043c", Redacted},
		{query, "https://biz.example/./device?pick=quiet|otter b", Redacted + " b"},
	} {
		w := signIns{homes: map[string]string{"b-1": "https://biz.example"}}
		w.waiting = []signInSecret{secretOf("b-1", w.homes["b-1"], published{name: "Biz"}, c.s)}
		if got := w.hide("b-1", c.text); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// waiting is a store of businesses and pending sign-ins, each with its secret.
type waiting struct {
	Store
	Tx
	records map[Kind][]Record
	secrets map[string][]byte
}

func (s waiting) View(_ context.Context, fn func(Tx) error) error { return fn(s) }
func (s waiting) Find(kind Kind, _ Query) ([]Record, error) {
	return slices.Clone(s.records[kind]), nil
}
func (s waiting) Secret(id string) ([]byte, error) { return s.secrets[id], nil }

func (s waiting) Put(kind Kind, r Record) error {
	s.records[kind] = append(s.records[kind], r)
	return nil
}

// agentWaiting has them of alice; with puts one more of the sign-ins.
func agentWaiting(t *testing.T, businesses ...*business) (a *Agent, with func(id, business string, s authorizationSecret)) {
	b, err := newBox(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s := waiting{records: map[Kind][]Record{}, secrets: map[string][]byte{}}
	for _, b := range businesses {
		if err := put(s, b); err != nil {
			t.Fatal(err)
		}
	}
	return &Agent{store: s, box: b}, func(id, business string, secret authorizationSecret) {
		z := &authorization{Head: Head{ID: id, Principal: "alice", Business: business, State: authorizationPending}}
		sealed, err := b.seal(authorizationPurpose(z), secret)
		if err = errors.Join(err, put(s, z)); err != nil {
			t.Fatal(err)
		}
		s.secrets[id] = sealed
	}
}

// DA-15: what a business's own card publishes is no secret of its sign-ins: it is where the
// business is told to be. What another's card has makes nothing public.
func TestOwnAddressIsNoSecret(t *testing.T) {
	const id, code = "01M8F2XW4QK7Z3V9TB5RC0HARK", "Kx83hd92kdQ1"
	const tenant = "https://pact.example/a2a/" + id
	a, with := agentWaiting(t,
		&business{
			Head: Head{ID: "b-1", Principal: "alice", Key: "https://air.example/x/Key12345/card"}, FinalURL: "https://air.example/x/Final123/card",
			Card: Card{Name: "Larkline Air", InterfaceURL: tenant, Origin: "https://pact.example"}, Metadata: Metadata{Issuer: "https://pact.example/as/Issuer12"},
		},
		&business{Head: Head{ID: "b-2", Principal: "alice"}, Card: Card{InterfaceURL: "https://pact.example/a2a/" + code, Origin: "https://pact.example"}},
		&business{Head: Head{ID: "b-3", Principal: "alice"}, Card: Card{InterfaceURL: "https://evil.example/" + code, Origin: "https://evil.example"}},
	)
	login := tenant + "/oauth/consent"
	with("z-1", "b-1", authorizationSecret{VerificationURI: login, VerificationURIComplete: login + "/" + code, UserCode: id, DeviceCode: "d"})
	for i, path := range []string{"Key12345", "Final123", "Issuer12"} {
		with(fmt.Sprint("z-", i+2), "b-1", authorizationSecret{VerificationURI: "https://login.example/" + path, DeviceCode: "d"})
	}
	hide, err := a.Withholder(t.Context(), Caller{Origin: OriginOwnerCLI, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"https://air.example/x/Key12345/card", "https://air.example/x/Final123/card", "https://pact.example/as/Issuer12", "https://pact.example/a2a/"} {
		if got := hide("b-1", text); got != text {
			t.Errorf("%s is told as %s", text, got)
		}
	}
	for _, text := range []string{login, login + "/" + code, "kx83 hd92 kdq1", tenant} { // a user code is one, whatever it is like
		if got := hide("b-1", text); !strings.Contains(got, Redacted) || strings.Contains(got, "hd92") {
			t.Errorf("%s is told as %s", text, got)
		}
	}
	a, with = agentWaiting(t, &business{Head: Head{ID: "b-1", Principal: "alice"}, Card: Card{Name: "Larkline Air", InterfaceURL: tenant, Origin: "https://pact.example"}})
	with("z-1", "b-1", authorizationSecret{VerificationURI: login, VerificationURIComplete: login + "?user_code=WDJB-MJHT", UserCode: "WDJB-MJHT", DeviceCode: "d"})
	if hide, err = a.Withholder(t.Context(), Caller{Origin: OriginOwnerCLI, Principal: "alice"}); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{tenant: tenant, tenant + "/.well-known/agent-card.json": tenant + "/.well-known/agent-card.json", login: Redacted, "WDJB MJHT": Redacted} {
		if got := hide("b-1", text); got != want {
			t.Errorf("%s is told as %s", text, got)
		}
	}
}

// EV-9, DA-15: what a receipt says is searched before the store is locked, and there only
// for sign-ins that began since.
func TestClaimsAreSearchedBefore(t *testing.T) {
	a, with := agentWaiting(t, &business{Head: Head{ID: "b-1", Principal: "alice"}, Card: Card{Origin: "https://biz.example"}})
	with("z-1", "b-1", authorizationSecret{VerificationURI: "https://biz.example/device", UserCode: "LXGM-QSTW", DeviceCode: "d"})
	r := &receipt{Head: Head{ID: "r-1", Principal: "alice", Business: "b-1"}}
	e := Evidence{Claims: &ReceiptClaims{Actions: []Action{{Tool: "lxgm qstw", ArgsHash: "WDJB-MJHT"}}}, Problems: []Problem{{Detail: "LXGM-QSTW"}}}
	var s receiptSecret
	before, err := a.withholdClaims(t.Context(), r, &s, e)
	if err != nil || s.Actions[0] != (Action{Redacted, "WDJB-MJHT"}) || s.Problems[0].Detail != Redacted || e.Claims.Actions[0].Tool != "lxgm qstw" {
		t.Fatalf("%+v of %+v, %v", s, e, err)
	}
	tx := a.store.(waiting)
	s.ScopesUsed = []string{"LXGM-QSTW"} // as if it were not searched
	if err := a.withholdSince(tx, r, &s, before); err != nil || s.ScopesUsed[0] != "LXGM-QSTW" {
		t.Errorf("it is searched again: %+v, %v", s, err)
	}
	with("z-2", "b-1", authorizationSecret{VerificationURI: "https://biz.example/device", UserCode: "WDJB-MJHT", DeviceCode: "d"})
	if err := a.withholdSince(tx, r, &s, before); err != nil || s.Actions[0] != (Action{Redacted, Redacted}) {
		t.Errorf("of a sign-in that began since is told: %+v, %v", s, err)
	}
	a.store = damaged{}
	if _, err := a.withholdClaims(t.Context(), r, &s, e); err == nil {
		t.Error("without the sign-ins all is kept")
	}
}

// DA-15, CV-8: a code across the end of what is kept is found: it is cut after that.
func TestWithheldBeforeItIsCut(t *testing.T) {
	a, with := agentWaiting(t, &business{Head: Head{ID: "b-1", Principal: "alice"}, Card: Card{Origin: "https://biz.example"}})
	with("z-1", "b-1", authorizationSecret{VerificationURI: "https://biz.example/device", UserCode: "LXGM-QSTW", DeviceCode: "d"})
	long := func(n int) string { return strings.Repeat("\u00e4", n-8) + " LXGM-QSTW" }
	for name, c := range map[string]struct {
		status int
		body   string
		said   func(Reply) string
		limit  int
	}{
		"a reply": {200, `{"message":{"role":"ROLE_AGENT","parts":[{"text":"` + long(maxReply) + `"}]}}`, func(r Reply) string { return r.Message.Text }, maxReply},
		"its id": {200, `{"message":{"role":"ROLE_AGENT","messageId":"` + long(maxScopeID) + `","parts":[{"text":"a"}]}}`,
			func(r Reply) string { return r.Message.MessageID }, maxScopeID},
		"a step-up": {200, `{"task":{"id":"t","status":{"state":"TASK_STATE_AUTH_REQUIRED","message":{"parts":[{"text":"` + long(maxReply) + `"}]}}}}`,
			func(r Reply) string { return r.StepUp.Text }, maxReply},
		"its task": {200, `{"task":{"id":"` + long(maxScopeID) + `","status":{"state":"TASK_STATE_AUTH_REQUIRED"}}}`,
			func(r Reply) string { return r.StepUp.TaskID }, maxScopeID},
		"a permission": {200, `{"task":{"id":"t","status":{"state":"TASK_STATE_AUTH_REQUIRED"},"metadata":{"pact.missingScopes":["` + long(maxURLInput) + `"]}}}`,
			func(r Reply) string { return r.StepUp.MissingScopes[0] }, maxURLInput},
		"an error":   {400, `{"error":{"message":"` + long(maxDescription) + `"}}`, func(r Reply) string { return r.ErrorText }, maxDescription},
		"its reason": {400, `{"error":{"message":"a","details":[{"reason":"` + long(maxScopeID) + `"}]}}`, func(r Reply) string { return r.ErrorReason }, maxScopeID},
	} {
		r := readReply(c.status, TypeJSON, "", []byte(c.body))
		a.withhold(&r, "alice", "b-1")
		if got := c.said(r); utf8.RuneCountInString(got) != c.limit || !strings.HasSuffix(got, " "+Redacted[:7]) {
			t.Errorf("%s: %d characters, %q", name, utf8.RuneCountInString(got), got[max(0, len(got)-20):])
		}
		if got := c.said(ParseReply(c.status, TypeJSON, "", []byte(c.body))); name != "its task" && name != "its reason" && name != "a permission" && utf8.RuneCountInString(got) != c.limit {
			t.Errorf("%s: %d characters of one that is parsed", name, utf8.RuneCountInString(got))
		}
	}
}

// DA-15: what a link has for everybody, by words or by the business's name, is no secret;
// what it has for one sign-in is.
func TestPartsOfLinks(t *testing.T) {
	for _, c := range []struct {
		plain, complete string
		stays, goes     []string
	}{
		{
			plain: "https://larkline.eu.auth0.com/activate", complete: "https://larkline.eu.auth0.com/activate?user_code=WDJB-MJHT",
			stays: []string{"Larkline: your flight LK 204 ... www.larkline.com", "activate, auth0"},
			goes:  []string{"wdjb mjht", "larkline.eu.auth0.com/activate"},
		},
		{plain: "https://id.example/larkline/device", stays: []string{"Larkline: your flight"}, goes: []string{"id.example/larkline/device"}},
		{plain: "https://larkline.example/booking/device", stays: []string{"Your booking LKDHCK is confirmed."}, goes: []string{"larkline.example/booking//device"}},
		{
			plain: "https://id.example/device", complete: "https://id.example/device?code=WDJB-MJHT&lang=english&return=Flights&theme=deviceLogin",
			stays: []string{"The flights page is in English.", "device login"}, goes: []string{"WDJB-MJHT", "https://id.example/device?code=1"},
		},
		{plain: "https://id.example/device", complete: "https://id.example/s/Kx83hd92kdQ==", stays: []string{"s/"}, goes: []string{"kx83hd92kdq", "K x 8 3 h d 9 2 k d Q", "id.example//s/Kx83hd92kdQ=="}},
		{plain: "https://id.example/device", complete: "https://k7f3q9m2x8.login.example/", stays: []string{"login"}, goes: []string{"K7F3-Q9M2-X8"}},
		{plain: "https://id.example/device", complete: "https://id.example/#code=482193", stays: []string{"48219"}, goes: []string{"482 193"}},
		{plain: "https://id.example/s/k7f3q9m2", stays: []string{"s/"}, goes: []string{"K7F3 Q9M2", "id.example/s/k7f3q9m2"}},               // all the link there is
		{plain: "https://id.example/v12345/tenant7", complete: "https://id.example/v12345/tenant7/x", stays: []string{"v12345", "tenant7"}}, // in both, and short
		{plain: "https://route66air.example/Route66Larkline/device", stays: []string{"Route 66 Air", "Route66 Larkline"}},                   // by its name and host
	} {
		w := signIns{homes: map[string]string{"b-1": "https://route66air.example"}}
		w.waiting = []signInSecret{secretOf("b-1", w.homes["b-1"], published{name: "Route 66 Larkline"}, authorizationSecret{VerificationURI: c.plain, VerificationURIComplete: c.complete})}
		for _, text := range c.stays {
			if got := w.hide("b-1", text); got != text {
				t.Errorf("%s, %s: %q is told as %q", c.plain, c.complete, text, got)
			}
		}
		for _, text := range c.goes {
			if got := w.hide("b-1", text); got != Redacted {
				t.Errorf("%s, %s: %q is told as %q", c.plain, c.complete, text, got)
			}
		}
	}
}

// DA-15: what a business picks as its code is taken out of its own words, and of others'
// only where it can be nothing else.
func TestCodesOfOthers(t *testing.T) {
	hostile := func(s authorizationSecret) signIns {
		s.VerificationURI = or(s.VerificationURI, "https://evil.example/device")
		w := signIns{homes: map[string]string{"b-evil": "https://evil.example", "b-twin": "https://evil.example", "b-air": "https://air.example"}}
		w.waiting = []signInSecret{secretOf("b-evil", w.homes["b-evil"], published{name: "Evil"}, s)}
		return w
	}
	for text, s := range map[string]authorizationSecret{
		"LK 204 is on time today and runs to time.":          {UserCode: "time", DeviceCode: "time"},
		"LK 204 Lisbon\u2013Oslo leaves at 09:40 UTC today.": {UserCode: "LK204Lisbon\u2013Osloleav"},
		"It costs EUR 900.":                                  {UserCode: "EUR 900"},
		"We cannot refund; refused.":                         {UserCode: "cannot", DeviceCode: "refused"},
		"https://air.example/.well-known/agent-card.json":    {UserCode: "http", VerificationURI: "https://air.example/.well-known/agent-card.json"},
		"https://air.example/":                               {UserCode: "https", VerificationURI: "https://air.example/"},
		"The device is here.":                                {UserCode: "DEVICE"},
		"ABCD EFGH":                                          {UserCode: "ABCD-EFGH"},
		"XABCD-EFGH":                                         {UserCode: "ABCD-EFGH"},
		"Your flight is on 2026-11-30.":                      {UserCode: "2026-11"},
		"It costs EUR 1,500.00":                              {UserCode: "1,500.00"},
		"It is CANCELLED.":                                   {UserCode: "CANCELLED"},
		"BOOKING: LKDHCK":                                    {UserCode: "BOOKING:"},
		"LKDHCK is confirmed, CHECK-IN is open.":             {UserCode: "LKDHCK", DeviceCode: "CHECK-IN"},
		"ABCD-1234ABCD-1234":                                 {UserCode: "ABCD-1234"},
	} {
		w := hostile(s)
		if got := w.hide("b-air", text); got != text {
			t.Errorf("%q: %q", text, got)
		}
		if got := w.of("b-air").hide(text); got != text { // as a reply is kept
			t.Errorf("%q is kept as %q", text, got)
		}
	}
	s := authorizationSecret{
		UserCode: "ABCD-EFGH", DeviceCode: "device-code-of-no-shape", VerificationURI: "https://evil.example/device",
		VerificationURIComplete: "https://evil.example/device?c=ABCD-EFGH",
	}
	for _, code := range []string{"WDJB-MJHT", "ABCD-1234", "ABCD1234", "1234-ABCD", "123-ABC-456"} {
		w := hostile(authorizationSecret{UserCode: code})
		if got := w.hide("b-air", "x"+code+" "+code+", "+code); got != "x"+code+" "+Redacted+", "+Redacted {
			t.Errorf("%s: %q", code, got)
		}
	}
	w := hostile(s)
	for text, want := range map[string]string{
		"a ABCD-EFGH.": "a " + Redacted + ".",
		"https://evil.example/device?c=ABCD-EFGH b": Redacted + " b",
		"https://evil.example/device":               Redacted,
		"'device-code-of-no-shape'":                 "'" + Redacted + "'",
	} {
		if got := w.hide("b-air", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for _, business := range []string{"b-evil", "b-twin", ""} { // of its own, under another id, and of nobody knows whom
		if got := w.hide(business, "abcd efgh"); got != Redacted {
			t.Errorf("%s: %q", business, got)
		}
	}
	if got := w.of("b-twin").hide("abcd efgh"); got != Redacted {
		t.Errorf("kept: %q", got)
	}
}

// AP-1, AP-3: one approval is used once, by who holds it, for one message; again only once
// it is written down that nothing ran of that (CV-10, CV-11).
func TestUseApproval(t *testing.T) {
	for name, c := range map[string]struct {
		state, holder, sent string // of the approval; sent: id of the message that it was sent with
		reason              Reason
		want                Reason // empty: it may be sent
	}{
		"approved":                   {state: ApprovalApproved},
		"approved, another holds it": {state: ApprovalApproved, holder: "other", want: ReasonBusy},
		"approved, nobody holds it":  {state: ApprovalApproved, holder: "-", want: ReasonBusy},
		"pending":                    {state: ApprovalPending, want: ReasonApprovalOver},
		"taken back":                 {state: ApprovalPending, reason: ReasonApproverRevoked, want: ReasonApproverRevoked},
		"denied":                     {state: ApprovalDenied, want: ReasonApprovalDenied},
		"expired":                    {state: ApprovalExpired, want: ReasonApprovalExpired},
		"withdrawn":                  {state: ApprovalWithdrawn, want: ReasonApprovalOver},
		"failed":                     {state: ApprovalFailed, want: ReasonApprovalOver},
		"sent, this message":         {state: ApprovalSent, sent: "m-new"},
		"sent, this one, another's":  {state: ApprovalSent, sent: "m-new", holder: "other", want: ReasonBusy},
		"sent, another message":      {state: ApprovalSent, sent: "m-old", want: ReasonApprovalOver},
	} {
		t.Run(name, func(t *testing.T) {
			tx := fakeTx{s: &fakeStore{records: map[string]Record{}}}
			a := &Agent{}
			op := &operation{who: &acting{principal: "alice"}, owner: "me"}
			p := &approval{Head: Head{ID: "approval-1", Principal: "alice", State: c.state}, Reason: c.reason, SentMessage: c.sent}
			if p.LeaseOwner = or(c.holder, "me"); c.holder == "-" {
				p.LeaseOwner = ""
			}
			op.approved = &approval{Head: p.Head}
			if err := put(tx, p); err != nil {
				t.Fatal(err)
			}
			m := &message{Head: Head{ID: "m-new", Principal: "alice"}}
			err := a.useApproval(tx, op, m)
			if ReasonOf(err) != c.want || c.want == "" && err != nil {
				t.Errorf("got %v, want %q", err, c.want)
			}
			p, err = get[approval](tx, "alice", "approval-1")
			state, sent := c.state, c.sent
			if c.want == "" {
				state, sent = ApprovalSent, "m-new"
			}
			if err != nil || p.State != state || p.SentMessage != sent {
				t.Errorf("kept %s %s, %v", p.State, p.SentMessage, err)
			}
			before := *p
			if err := a.unused(tx, op, m); err != nil {
				t.Error(err)
			}
			if c.want == "" {
				state, sent = ApprovalApproved, ""
			}
			p, err = get[approval](tx, "alice", "approval-1")
			if err != nil || p.State != state || p.SentMessage != sent || c.want != "" && p.Revision != before.Revision {
				t.Errorf("made unused: %s %s, %v", p.State, p.SentMessage, err)
			}
		})
	}
}

// damaged is a Store that cannot be read.
type damaged struct{ Store }

func (damaged) View(context.Context, func(Tx) error) error { return errors.New("disk") }

// DA-15: where it cannot be told what is to be hidden, all is.
func TestWithholdFailsClosed(t *testing.T) {
	a := &Agent{store: damaged{}}
	if hide, err := a.Withholder(t.Context(), Caller{Origin: OriginOwnerCLI, Principal: "alice"}); err == nil || hide != nil {
		t.Errorf("got %v", err)
	}
	r := Reply{
		Message: ReplyText{Text: "code", MessageID: "code", ContextID: "code"},
		StepUp:  StepUp{Text: "code", ContextID: "code", TaskID: "code", MissingScopes: []string{"code"}}, ErrorText: "code", ErrorReason: "code",
	}
	a.withhold(&r, "alice", "b-1")
	if got := fmt.Sprintf("%+v", r); strings.Contains(got, "code") {
		t.Error(got)
	}
}

// CV-7, DA-15: an id that is too long to be kept is not searched.
func TestLongIDs(t *testing.T) {
	a := &Agent{store: damaged{}} // of which all that is searched is withheld
	long := strings.Repeat("c", maxURLInput+1)
	r := Reply{Message: ReplyText{ContextID: long}, StepUp: StepUp{ContextID: long[1:]}}
	a.withhold(&r, "alice", "b-1")
	if r.Message.ContextID != long || r.StepUp.ContextID != "" {
		t.Errorf("%d and %d bytes are left", len(r.Message.ContextID), len(r.StepUp.ContextID))
	}
	op := &operation{conversation: new(conversation)}
	if op.adoptContext(long); op.conversation.ContextID != "" {
		t.Error("it is kept")
	}
}

// EV-9, DA-15: nothing that a receipt says is left out.
func TestClaimsAreRewritten(t *testing.T) {
	s := receiptSecret{
		User: "kept", Actions: []Action{{"code", "code"}}, ScopesUsed: []string{"code"}, Problems: []Problem{{Detail: "code"}},
	}
	said := s.Actions
	s.rewrite(func(string) string { return Redacted })
	if got := fmt.Sprintf("%+v", s); strings.Contains(got, "code") || s.User != "kept" || said[0].Tool != "code" {
		t.Error(got)
	}
}

// RD-2: characters that nobody sees hide no secret.
func TestRedactedThroughInvisibles(t *testing.T) {
	if got := RedactText("Bear\u200ber abcdefgh\ufe0f12345678"); got != "Bearer "+Redacted {
		t.Errorf("got %q", got)
	}
	if got := RedactText("a\u200db"); got != "a\u200db" {
		t.Errorf("got %q", got)
	}
}
