package agent_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/internal/bubble"
	"github.com/pactsigner/pactsigner/jwks"
)

// exportOf sends one delegated inspection whose receipt is changed so, and exports
// what came of it.
func exportOf(w *world, receipt func(w *world) func(claims, envelope map[string]any)) (*agent.Agent, agent.Result, agent.ReceiptExport) {
	w.t.Helper()
	a := granted(w, 30*time.Minute, "trips:read")
	if receipt != nil {
		w.biz.receipt = receipt(w)
	}
	r := w.send(a, owner(), readTrips, agent.StatusReplied, "")
	x, err := a.ExportReceipt(w.t.Context(), owner(), r.Evidence.Receipt)
	if err != nil {
		w.t.Fatal(err)
	}
	return a, r, x
}

// EV-1..EV-4: each verdict that is stored is found again in its export, without
// the network, years later.
func TestExportVerifiesToTheSameVerdict(t *testing.T) {
	t.Parallel()
	var first map[string]any
	for name, c := range map[string]struct {
		receipt func(w *world) func(claims, envelope map[string]any)
		verdict agent.Verdict
	}{
		"verified": {nil, agent.VerdictVerified},
		"missing":  {func(*world) func(c, e map[string]any) { return func(_, e map[string]any) { e["none"] = true } }, agent.VerdictMissing},
		"bad signature": {func(w *world) func(c, e map[string]any) {
			return func(c, e map[string]any) { e["jws"] = spoiled(w.biz.key.sign(c)) }
		}, agent.VerdictInvalid},
		"malformed": {func(*world) func(c, e map[string]any) { return func(_, e map[string]any) { e["jws"] = "x.y" } }, agent.VerdictInvalid},
		"envelope differs": {func(*world) func(c, e map[string]any) {
			return func(_, e map[string]any) { e["claims"] = map[string]any{} }
		}, agent.VerdictInvalid},
		"unknown kid": {func(w *world) func(c, e map[string]any) {
			k := newKey(w.t)
			return func(c, e map[string]any) { e["jws"] = k.sign(c) }
		}, agent.VerdictInvalid},
		"another user": {func(*world) func(c, e map[string]any) { return func(c, _ map[string]any) { c["user"] = "cust-9" } }, agent.VerdictInvalid},
		"outside scope": {func(*world) func(c, e map[string]any) {
			return func(c, _ map[string]any) { c["scopesUsed"] = []string{"trips:history"} }
		}, agent.VerdictNeedsReview},
		"too late": {func(*world) func(c, e map[string]any) {
			return func(c, _ map[string]any) { c["ts"] = time.Now().Add(6 * time.Minute).UTC().Format(time.RFC3339) }
		}, agent.VerdictNeedsReview},
		"no keys": {func(w *world) func(c, e map[string]any) {
			w.biz.noKeys = true
			time.Sleep(11 * time.Minute)
			return func(c, e map[string]any) {}
		}, agent.VerdictUnverifiable},
		"replayed": {func(w *world) func(c, e map[string]any) {
			first = nil
			return func(c, e map[string]any) {
				if first == nil {
					first = map[string]any{"claims": c, "jws": w.biz.key.sign(c)}
				}
				e["claims"], e["jws"] = first["claims"], first["jws"]
			}
		}, agent.VerdictInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a, r, x := exportOf(w, c.receipt)
				if name == "replayed" {
					r = w.send(a, owner(), readTrips, agent.StatusReplied, "")
					var err error
					if x, err = a.ExportReceipt(t.Context(), owner(), r.Evidence.Receipt); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(5 * 365 * 24 * time.Hour)
				calls := len(w.requests)
				v, err := agent.VerifyExport(x.Document())
				if err != nil || v.Verdict != c.verdict || v.Recorded != c.verdict || !v.Agrees || x.Verdict != c.verdict || v.KeysFrom != agent.KeysFromFile {
					t.Errorf("got %+v, %v; want %s", v, err, c.verdict)
				}
				if fmt.Sprint(v.Issues) != fmt.Sprint(v.RecordedIssues) || fmt.Sprint(v.Issues) != fmt.Sprint(append([]string{}, r.Evidence.Issues...)) {
					t.Errorf("issues %v, recorded %v, told %v", v.Issues, v.RecordedIssues, r.Evidence.Issues)
				}
				if len(w.requests) != calls {
					t.Error("it used the network")
				}
				if c.verdict == agent.VerdictVerified && (v.KeyID != w.biz.key.kid || v.Thumbprint != w.biz.key.kid || v.Claims == nil || v.Claims.Brand != iface ||
					v.InterfaceURL != iface || v.BusinessName != "Air" || len(v.Digest) != 64 || len(v.BodyDigest) != 64 || v.MessageID != w.biz.sent()[0].id ||
					v.Sent.IsZero() || v.Received.IsZero() || v.Exported.IsZero()) {
					t.Errorf("got %+v", v)
				}
			})
		})
	}
}

// EV-2, EV-9: whatever a business sent for a receipt and was stored is exported, and
// its export read, with the same verdict; and it grows by no more than what is ours.
func TestExportOfAnything(t *testing.T) {
	t.Parallel()
	deep := func(depth int, inside string) string {
		return strings.Repeat("[", depth) + inside + strings.Repeat("]", depth)
	}
	const large = 300 << 10
	for name, extra := range map[string]string{
		"deep":              deep(500, strings.Repeat("1,", 10000)+"1"),
		"very deep":         deep(9000, "1"),
		"wide":              "[" + strings.Repeat("1,", large/2) + "1]",
		"objects":           deep(200, strings.Repeat(`{"a":{"b":[]}},`, 10000)+"1"),
		"space":             "[" + strings.Repeat("\n\t  ", large/4) + "1]",
		"escapes":           `"` + strings.Repeat(`\u0001\u2028\/\ud83d\ude00<>&`, large/32) + `"`,
		"letters":           `"` + strings.Repeat("\u2028\u00e9\u007f", large/6) + `"`,
		"numbers":           `[1e400,-0,1.0000000000000000000000001,` + strings.Repeat("9", 5000) + `]`,
		"names":             `{"":{"constructor":1,"\u0000":2,"a\/b":3,"~0":4}}`,
		"the words of ours": `{"receipt":null,"keys":{"keys":[]},"heldTo":{}}`,
	} {
		for how, receipt := range map[string]func(claims, envelope map[string]any){
			"signed":        func(c, _ map[string]any) { c["x"] = rawJSON(extra) },
			"beside":        func(_, e map[string]any) { e["x"] = "EXTRA" },
			"in its place":  func(_, e map[string]any) { e["claims"] = "EXTRA" },
			"for signature": func(_, e map[string]any) { e["jws"] = "EXTRA" },
		} {
			if how == "signed" && len(extra) > 100<<10 { // it comes twice, once in base64
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.around(provider, "/message:send", func(rw http.ResponseWriter, r *http.Request, _ func()) { // byte by byte
						rec := httptest.NewRecorder()
						w.biz.ServeHTTP(rec, r)
						respond(rw, rec.Code, strings.Replace(rec.Body.String(), `"EXTRA"`, extra, 1))
					})
					_, r, x := exportOf(w, func(*world) func(c, e map[string]any) { return receipt })
					document := x.Document()
					v, err := agent.VerifyExport(document)
					if err != nil || !v.Agrees || v.Verdict != r.Evidence.Verdict || fmt.Sprint(v.Issues) != fmt.Sprint(append([]string{}, r.Evidence.Issues...)) {
						t.Errorf("%v; recorded %+v, found %s %v", err, r.Evidence, v.Verdict, v.Issues)
					}
					var doc struct{ Receipt json.RawMessage }
					if err := json.Unmarshal(document, &doc); err != nil && name != "very deep" || len(document) > len(doc.Receipt)+4096 && name != "very deep" {
						t.Errorf("%v: a receipt of %d bytes in a document of %d", err, len(doc.Receipt), len(document))
					}
				})
			})
		}
	}
}

// rawJSON is written as it is.
type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// EV-7: an acknowledgement changes no verdict, of an export neither. It is the
// owner's alone, and of one principal (ID-7).
func TestExportIsTheOwners(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, r, _ := exportOf(w, func(*world) func(c, e map[string]any) { return func(_, e map[string]any) { e["none"] = true } })
		if _, err := a.Acknowledge(t.Context(), owner(), r.Evidence.Receipt); err != nil {
			t.Fatal(err)
		}
		x, err := a.ExportReceipt(t.Context(), owner(), r.Evidence.Receipt)
		if v, e := agent.VerifyExport(x.Document()); err != nil || e != nil || v.Verdict != agent.VerdictMissing || !v.Agrees {
			t.Errorf("got %+v, %v, %v", v, err, e)
		}
		c := owner()
		c.Origin = agent.OriginBot
		if _, err := a.ExportReceipt(t.Context(), c, r.Evidence.Receipt); agent.ReasonOf(err) != agent.ReasonDelegationRequired {
			t.Errorf("a bot: %v", err)
		}
		c = owner()
		c.Principal = "bob"
		if _, err := a.ExportReceipt(t.Context(), c, r.Evidence.Receipt); err == nil {
			t.Error("another principal's")
		}
	})
}

// RD-1, SG-14: the file holds the owner's evidence, and nothing but the file does.
func TestExportPrintsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _, x := exportOf(w, nil)
		var doc struct {
			Receipt struct{ JWS string }
			HeldTo  struct{ User string }
		}
		if err := json.Unmarshal(x.Document(), &doc); err != nil || doc.Receipt.JWS == "" || doc.HeldTo.User != "cust-1" {
			t.Fatalf("document %s, %v", x.Document(), err)
		}
		marshalled, err := json.Marshal(x)
		if err != nil {
			t.Error(err)
		}
		check, err := agent.VerifyExport(x.Document())
		if err != nil {
			t.Error(err)
		}
		checked, err := json.Marshal(check)
		if err != nil {
			t.Error(err)
		}
		for _, s := range []string{fmt.Sprint(x), fmt.Sprintf("%+v %#v %s %q %x", x, x, x, x, x), string(marshalled), string(checked), fmt.Sprintf("%+v", check)} {
			if strings.Contains(s, doc.Receipt.JWS) || strings.Contains(s, "cust-1") || strings.Contains(s, "heldTo") {
				t.Errorf("shown: %s", s)
			}
		}
	})
}

// EV-2, EV-4: a byte that is changed in what was signed, what it was held to or
// the key is noticed.
func TestExportTampered(t *testing.T) {
	t.Parallel()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _, x := exportOf(w, func(*world) func(c, e map[string]any) {
			return func(c, _ map[string]any) { c["ts"] = time.Now().Add(time.Second).UTC().Format(time.RFC3339) }
		})
		data := x.Document()
		var doc struct {
			Receipt struct {
				JWS    string
				Claims map[string]any
			}
			Keys struct{ Keys []struct{ X, Y, Kid string } }
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		matters := []string{ // all of each, but for the last, half significant character of base64
			doc.Receipt.JWS[:strings.LastIndexByte(doc.Receipt.JWS, '.')], doc.Receipt.JWS[strings.LastIndexByte(doc.Receipt.JWS, '.')+1 : len(doc.Receipt.JWS)-1],
			doc.Keys.Keys[0].X[:42], doc.Keys.Keys[0].Y[:42], doc.Keys.Keys[0].Kid,
		}
		for name, v := range doc.Receipt.Claims {
			matters = append(matters, `"`+name+`"`)
			if s, ok := v.(string); ok {
				matters = append(matters, s)
			}
		}
		matters = append(matters, "trips:read", "cust-1", "g-1", signerURL, iface)
		n := 0
		for _, part := range matters {
			for from := 0; ; {
				i := bytes.Index(data[from:], []byte(part))
				if i < 0 {
					break
				}
				for j := from + i; j < from+i+len(part); j++ {
					changed := bytes.Clone(data)
					if changed[j]++; changed[j] == '"' || changed[j] == '\\' {
						changed[j]++
					}
					n++
					if v, err := agent.VerifyExport(changed); err == nil && v.Verdict == agent.VerdictVerified {
						t.Errorf("verified with %q", changed[max(0, j-20):min(len(changed), j+20)])
					}
				}
				from += i + len(part)
			}
		}
		if n < 800 {
			t.Errorf("only %d changes were tried", n)
		}
	})
}

// A document that says less, or other, than an export does is refused: it would
// be held to less. A verdict in the file that is not the one found does not agree.
func TestExportReadStrictly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _, x := exportOf(w, nil)
		edited := func(f func(d map[string]any)) []byte {
			var d map[string]any
			if err := json.Unmarshal(x.Document(), &d); err != nil {
				t.Fatal(err)
			}
			f(d)
			return marshal(d)
		}
		sub := func(d map[string]any, name string) map[string]any { return d[name].(map[string]any) }
		for name, data := range map[string][]byte{
			"empty":             {},
			"not JSON":          []byte("receipt"),
			"null":              []byte("null"),
			"two documents":     append(x.Document(), x.Document()...),
			"too large":         append(x.Document(), bytes.Repeat([]byte(" "), 1<<20)...),
			"another format":    edited(func(d map[string]any) { d["format"] = "x" }),
			"a newer version":   edited(func(d map[string]any) { d["version"] = 2 }),
			"an unknown member": edited(func(d map[string]any) { d["more"] = 1 }),
			"an unknown term":   edited(func(d map[string]any) { sub(d, "heldTo")["more"] = 1 }),
			"no keys in keys":   edited(func(d map[string]any) { d["keys"] = map[string]any{} }),
			"null keys":         edited(func(d map[string]any) { d["keys"] = nil }),
			"another verdict":   edited(func(d map[string]any) { sub(d, "recorded")["verdict"] = "fine" }),
			"another interface": edited(func(d map[string]any) { sub(d, "business")["interfaceUrl"] = "https://x.example" }),
			"no grant":          edited(func(d map[string]any) { delete(sub(d, "heldTo"), "grantId") }),
			"no user":           edited(func(d map[string]any) { delete(sub(d, "heldTo"), "user") }),
			"no pa":             edited(func(d map[string]any) { delete(sub(d, "heldTo"), "pa") }),
			"no brand":          edited(func(d map[string]any) { delete(sub(d, "heldTo"), "brand") }),
			"no scopes":         edited(func(d map[string]any) { delete(sub(d, "heldTo"), "grantScopes") }),
			"no time":           edited(func(d map[string]any) { delete(sub(d, "heldTo"), "sentAt") }),
			"no later time":     edited(func(d map[string]any) { delete(sub(d, "heldTo"), "receivedAt") }),
			"a repeated member": bytes.Replace(x.Document(), []byte(`"version"`), []byte(`"format": "x", "version"`), 1),
		} {
			v, err := agent.VerifyExport(data)
			if err == nil {
				t.Errorf("%s: accepted: %+v", name, v)
			} else if strings.Contains(err.Error(), "cust-1") || strings.Contains(err.Error(), "eyJ") || !strings.HasPrefix(err.Error(), "export: ") {
				t.Errorf("%s: error %v", name, err)
			}
		}
		for name, c := range map[string]struct {
			data    []byte
			verdict agent.Verdict
		}{
			"no receipt":   {edited(func(d map[string]any) { delete(d, "receipt") }), agent.VerdictMissing},
			"null receipt": {edited(func(d map[string]any) { d["receipt"] = nil }), agent.VerdictInvalid},
			"no keys":      {edited(func(d map[string]any) { delete(d, "keys") }), agent.VerdictUnverifiable},
			"no scope": {edited(func(d map[string]any) {
				sub(d, "heldTo")["grantScopes"] = []string{}
			}), agent.VerdictNeedsReview},
			"sent after it came": {edited(func(d map[string]any) { // of a clock that was set back
				h := sub(d, "heldTo")
				h["sentAt"] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
			}), agent.VerdictNeedsReview},
			"a replay": {edited(func(d map[string]any) { sub(d, "heldTo")["attachedElsewhere"] = true }), agent.VerdictInvalid},
			"another time": {edited(func(d map[string]any) {
				h := sub(d, "heldTo")
				h["sentAt"], h["receivedAt"] = "2020-01-01T00:00:00Z", "2020-01-01T00:00:01Z"
			}), agent.VerdictNeedsReview},
		} {
			if v, err := agent.VerifyExport(c.data); err != nil || v.Verdict != c.verdict || v.Agrees {
				t.Errorf("%s: %+v, %v; want %s", name, v, err, c.verdict)
			}
		}
		if v, err := agent.VerifyExport(edited(func(d map[string]any) { sub(d, "recorded")["verdict"] = "invalid" })); err != nil || v.Verdict != agent.VerdictVerified || v.Agrees {
			t.Errorf("another verdict on record: %+v, %v", v, err)
		}
	})
}

// EV-2, EV-3: a file that brings its own key proves only that this key signed it;
// another copy of the business's keys shows a forged one.
func TestExportWithOtherKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _, x := exportOf(w, nil)
		set := func(k key) jwks.Set {
			s, err := jwks.Parse(k.set())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if v, err := agent.VerifyExportWith(x.Document(), set(w.biz.key)); err != nil || v.Verdict != agent.VerdictVerified || v.KeysFrom != agent.KeysFromGiven || v.Thumbprint != w.biz.key.kid {
			t.Errorf("the business's: %+v, %v", v, err)
		}
		forger := newKey(t)
		forged := bytes.Clone(x.Document())
		var doc struct{ Receipt struct{ JWS string } }
		if err := json.Unmarshal(forged, &doc); err != nil {
			t.Fatal(err)
		}
		var d map[string]any
		_ = json.Unmarshal(forged, &d)
		claims := d["receipt"].(map[string]any)["claims"].(map[string]any)
		claims["actions"] = []any{map[string]any{"tool": "refund"}}
		d["receipt"] = map[string]any{"claims": claims, "jws": forger.sign(claims)}
		d["keys"] = json.RawMessage(forger.set())
		v, err := agent.VerifyExport(marshal(d))
		if err != nil || v.Verdict != agent.VerdictVerified || v.Thumbprint != forger.kid || v.KeysFrom != agent.KeysFromFile {
			t.Errorf("by the forger's key: %+v, %v", v, err)
		}
		if v, err := agent.VerifyExportWith(marshal(d), set(w.biz.key)); err != nil || v.Verdict != agent.VerdictInvalid || v.Issues[0] != agent.IssueUnknownKey {
			t.Errorf("by the business's: %+v, %v", v, err)
		}
	})
}

// FuzzVerifyExport: whatever the document, it is judged the same twice, and
// nothing that a fuzzer makes out of an export is verified with other claims.
func FuzzVerifyExport(f *testing.F) {
	const ts = "2026-01-02T03:04:05Z"
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	k := key{private: private}
	if k.kid, err = jwks.Thumbprint(&private.PublicKey); err != nil {
		f.Fatal(err)
	}
	claims := map[string]any{"grantId": "g-1", "user": "cust-1", "pa": signerURL, "brand": iface, "scopesUsed": []string{"a"}, "actions": []any{}, "ts": ts}
	good := marshal(map[string]any{
		"format": "pact-receipt-export", "version": 1, "exported": ts,
		"receipt": map[string]any{"jws": k.sign(claims), "claims": claims}, "keys": json.RawMessage(k.set()),
		"heldTo": map[string]any{"grantId": "g-1", "user": "cust-1", "pa": signerURL, "brand": iface, "grantScopes": []string{"a"},
			"sentAt": ts, "receivedAt": ts, "attachedElsewhere": false},
		"recorded": map[string]any{"verdict": "verified", "issues": []string{}},
		"message":  map[string]any{"messageId": "1", "bodySha256": "2"}, "business": map[string]any{"name": "Air", "interfaceUrl": iface},
	})
	want, err := agent.VerifyExport(good)
	if err != nil || want.Verdict != agent.VerdictVerified {
		f.Fatalf("seed: %+v, %v", want, err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":"pact-receipt-export","version":1}`))
	f.Add(bytes.Replace(good, []byte(`"receipt"`), []byte(`"Receipt"`), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := agent.VerifyExport(data)
		again, err2 := agent.VerifyExport(data)
		if (err == nil) != (err2 == nil) || !reflect.DeepEqual(v, again) {
			t.Errorf("%+v, %v and %+v, %v", v, err, again, err2)
		}
		if err != nil {
			return
		}
		if v.Agrees != (v.Verdict == v.Recorded) {
			t.Errorf("agrees %v: %s and %s", v.Agrees, v.Verdict, v.Recorded)
		}
		if v.Verdict == agent.VerdictVerified && v.Thumbprint == k.kid && !reflect.DeepEqual(v.Claims, want.Claims) {
			t.Errorf("verified %+v", v.Claims)
		}
	})
}
