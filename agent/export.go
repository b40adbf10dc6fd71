package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/jwks"
)

// The export of a receipt: what is written and the only thing that is read.
const (
	exportFormat  = "pact-receipt-export"
	exportVersion = 1
	maxExport     = 1 << 20 // bytes; a reply has 512 KiB at most
)

// ReceiptExport is a receipt and all that it was judged by, as a file of the
// owner's own: it holds the signed receipt and the user's id at the business, and
// prints, logs and marshals without them.
type ReceiptExport struct {
	ID       string  // of the receipt
	Verdict  Verdict // on record
	document []byte
}

// Document is the file: one JSON document that VerifyExport checks again without
// this agent or any network. It is for the owner alone.
func (x ReceiptExport) Document() []byte { return slices.Clone(x.document) }

func (x ReceiptExport) String() string               { return "export of receipt " + x.ID + " " + Redacted }
func (x ReceiptExport) Format(f fmt.State, _ rune)   { _, _ = io.WriteString(f, x.String()) }
func (x ReceiptExport) LogValue() slog.Value         { return slog.StringValue(x.String()) }
func (x ReceiptExport) MarshalText() ([]byte, error) { return []byte(x.String()), nil }

// delegatedVerdicts are those that a stored receipt can have.
var delegatedVerdicts = []Verdict{VerdictMissing, VerdictInvalid, VerdictUnverifiable, VerdictNeedsReview, VerdictVerified}

// exported is the document of an export.
type exported struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	Exported time.Time `json:"exported"`
	// Receipt is pact.receipt as it came; not there if none came.
	Receipt jsontext.Value `json:"receipt,omitzero"`
	// Keys is the key set with the key that it was judged by: empty if the business
	// published no such key, not there if its keys could not be had.
	Keys     jsontext.Value   `json:"keys,omitzero"`
	HeldTo   exportedTerms    `json:"heldTo"`
	Recorded exportedVerdict  `json:"recorded"`
	Message  exportedMessage  `json:"message"`
	Business exportedBusiness `json:"business"`
}

// exportedTerms is what the agent knew of the turn.
type exportedTerms struct {
	GrantID     string    `json:"grantId"`
	User        string    `json:"user"`
	PA          string    `json:"pa"`
	Brand       string    `json:"brand"`
	GrantScopes []string  `json:"grantScopes"`
	SentAt      time.Time `json:"sentAt"`
	ReceivedAt  time.Time `json:"receivedAt"`
	// AttachedElsewhere: the same receipt had come with another message (EV-2).
	AttachedElsewhere bool `json:"attachedElsewhere"`
}

type exportedVerdict struct {
	Verdict Verdict  `json:"verdict"`
	Issues  []string `json:"issues"`
}

type exportedMessage struct {
	ID     string `json:"messageId"`
	Digest string `json:"bodySha256"`
}

type exportedBusiness struct {
	Name         string `json:"name"` // untrusted
	InterfaceURL string `json:"interfaceUrl"`
}

// ExportReceipt makes a receipt into a document that can be checked again years
// later. It takes the owner, outside any task (EV-9). Errors wrap ErrNotFound.
func (a *Agent) ExportReceipt(ctx context.Context, c Caller, id string) (ReceiptExport, error) {
	if err := c.check(); err != nil {
		return ReceiptExport{}, err
	}
	if err := c.mustBeSurface("export a receipt"); err != nil {
		return ReceiptExport{}, err
	}
	var r *receipt
	var m *message
	var s receiptSecret
	name := ""
	err := a.store.View(ctx, func(tx Tx) (err error) {
		if r, err = get[receipt](tx, c.Principal, id); err != nil {
			return err
		}
		if m, err = get[message](tx, c.Principal, r.Message); err != nil {
			return err
		}
		name = nameCache{}.of(tx, c.Principal, r.Business)
		return a.box.get(tx, r.ID, receiptPurpose(r), &s)
	})
	if errors.Is(err, errSecretLost) {
		return ReceiptExport{}, refuse(StatusFailed, ReasonSecretMissing, "the signed form of receipt %s is lost: the profile's key is not the one that it was kept with", r.ID)
	}
	if err != nil {
		return ReceiptExport{}, fmt.Errorf("receipt %s: %w", truncate(id, maxScopeID), err)
	}
	doc := exported{
		Format: exportFormat, Version: exportVersion, Exported: a.now().UTC(),
		Receipt: s.Receipt, Keys: s.Keys,
		HeldTo: exportedTerms{
			GrantID: s.Want.GrantID, User: s.User, PA: s.Want.PA, Brand: s.Want.Brand, GrantScopes: s.Want.GrantScopes,
			SentAt: s.Want.SentAt.UTC(), ReceivedAt: s.Want.ReceivedAt.UTC(),
			AttachedElsewhere: Verdict(r.State) == VerdictInvalid && slices.Contains(r.Issues, IssueReplayed),
		},
		Recorded: exportedVerdict{Verdict(r.State), nonNil(r.Issues)},
		Message:  exportedMessage{m.WireID, m.BodyDigest},
		Business: exportedBusiness{name, s.Want.Brand},
	}
	if doc.Keys == nil && slices.Contains(r.Issues, IssueUnknownKey) {
		doc.Keys = jsontext.Value(`{"keys":[]}`)
	}
	data, err := doc.text()
	if err != nil {
		return ReceiptExport{}, fmt.Errorf("receipt %s: %w", r.ID, err)
	}
	if len(data) > maxExport {
		return ReceiptExport{}, fmt.Errorf("receipt %s: its export would have %d bytes, and one that can be checked has %d at most", r.ID, len(data), maxExport)
	}
	return ReceiptExport{ID: r.ID, Verdict: Verdict(r.State), document: data}, nil
}

// text is the document, indented for people but for what the business sent: the
// indentation of that could be longer than all the rest.
func (d exported) text() ([]byte, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	members, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	before := "{"
	for _, m := range members {
		if m.name != "receipt" && m.name != "keys" {
			if err := m.value.Indent(jsontext.WithIndentPrefix("  "), jsontext.WithIndent("  ")); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(&b, "%s\n  %q: %s", before, m.name, m.value)
		before = ","
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

// Where the keys of an ExportCheck are from.
const (
	KeysFromFile  = "file"
	KeysFromGiven = "given"
)

// ExportCheck is what an exported receipt is worth now. What is signed are the
// claims, and nothing else of the file: what it was held to, the message's digest
// and the business's name are the word of who exported it.
type ExportCheck struct {
	Verdict  Verdict   `json:"verdict"`
	Issues   []string  `json:"issues"`
	Problems []Problem `json:"problems,omitzero"`
	// Recorded is the verdict that the file tells; Agrees if it is the one found now.
	Recorded       Verdict  `json:"recorded"`
	RecordedIssues []string `json:"recordedIssues"`
	Agrees         bool     `json:"agrees"`

	Claims    *ReceiptClaims `json:"claims,omitzero"` // as far as they could be read; untrusted
	Digest    string         `json:"digest,omitzero"` // SHA-256 of the JWS
	Algorithm string         `json:"alg,omitzero"`
	// The key that it was checked with: its kid, its RFC 7638 thumbprint, and whether
	// it is the file's own. A file that brings its key proves only that this key
	// signed it: compare the thumbprint with a copy of the business's key set that came
	// another way, or check with that copy.
	KeyID      string `json:"kid,omitzero"`
	Thumbprint string `json:"thumbprint,omitzero"`
	KeysFrom   string `json:"keysFrom"`

	BusinessName string    `json:"businessName"` // untrusted
	InterfaceURL string    `json:"interfaceUrl"`
	MessageID    string    `json:"messageId"`
	BodyDigest   string    `json:"bodySha256"`
	Sent         time.Time `json:"sent"`
	Received     time.Time `json:"received"`
	Exported     time.Time `json:"exported"`
}

// VerifyExport checks a document of ExportReceipt by the keys inside it, purely:
// no network, no clock, no profile. An error is that of a document which is none;
// a receipt that does not stand up is a verdict.
func VerifyExport(data []byte) (ExportCheck, error) {
	doc, err := readExport(data)
	if err != nil {
		return ExportCheck{}, err
	}
	var keys KeyFinder
	if doc.Keys != nil {
		set, err := jwks.Parse(doc.Keys)
		if err != nil {
			return ExportCheck{}, fmt.Errorf("export: keys: %w", err)
		}
		keys = SetKeys(set)
	}
	return doc.check(keys, KeysFromFile), nil
}

// VerifyExportWith is VerifyExport by another copy of the business's keys.
func VerifyExportWith(data []byte, keys jwks.Set) (ExportCheck, error) {
	doc, err := readExport(data)
	if err != nil {
		return ExportCheck{}, err
	}
	return doc.check(SetKeys(keys), KeysFromGiven), nil
}

// readExport reads a document strictly: what says less than it should would be
// held to less.
func readExport(data []byte) (exported, error) {
	var doc exported
	if len(data) > maxExport {
		return doc, fmt.Errorf("export: larger than %d bytes", maxExport)
	}
	if err := json.Unmarshal(data, &doc, json.RejectUnknownMembers(true)); err != nil {
		// Its text may quote the document, and that the receipt.
		var where *json.SemanticError
		if errors.As(err, &where) && where.JSONPointer != "" {
			return doc, fmt.Errorf("export: %s is not as it is in an export of version %d", truncate(RedactText(string(where.JSONPointer)), maxScopeID), exportVersion)
		}
		return doc, errors.New("export: not a JSON document of an exported receipt")
	}
	missing := ""
	for _, f := range []struct {
		name    string
		present bool
	}{
		{"exported", !doc.Exported.IsZero()},
		{"heldTo.grantId", doc.HeldTo.GrantID != ""},
		{"heldTo.user", doc.HeldTo.User != ""},
		{"heldTo.pa", doc.HeldTo.PA != ""},
		{"heldTo.brand", doc.HeldTo.Brand != ""},
		{"heldTo.grantScopes", doc.HeldTo.GrantScopes != nil},
		{"heldTo.sentAt", !doc.HeldTo.SentAt.IsZero()},
		{"heldTo.receivedAt", !doc.HeldTo.ReceivedAt.IsZero()}, // a clock that was set back may make it the sooner
		{"recorded.verdict", slices.Contains(delegatedVerdicts, doc.Recorded.Verdict)},
		{"message.bodySha256", doc.Message.Digest != ""},
		{"business.interfaceUrl", doc.Business.InterfaceURL == doc.HeldTo.Brand},
	} {
		if !f.present && missing == "" {
			missing = f.name
		}
	}
	switch {
	case doc.Format != exportFormat:
		return doc, fmt.Errorf("export: format is not %q", exportFormat)
	case doc.Version != exportVersion:
		return doc, fmt.Errorf("export: version %d is not known here, only %d: use the program that made it, or a newer one", doc.Version, exportVersion)
	case missing != "":
		return doc, fmt.Errorf("export: %s is missing or does not fit the rest", missing)
	}
	return doc, nil
}

// check judges the receipt by what it was held to and by keys; nil: none.
func (d exported) check(keys KeyFinder, from string) ExportCheck {
	rec := &usedKey{KeyFinder: keys}
	var finder KeyFinder
	if keys != nil {
		finder = rec
	}
	e := VerifyReceipt(context.Background(), d.Receipt, ReceiptWant{
		Delegated: true, GrantID: d.HeldTo.GrantID, User: d.HeldTo.User, PA: d.HeldTo.PA, Brand: d.HeldTo.Brand,
		GrantScopes: d.HeldTo.GrantScopes, SentAt: d.HeldTo.SentAt, ReceivedAt: d.HeldTo.ReceivedAt,
		Seen: func(string) bool { return d.HeldTo.AttachedElsewhere },
	}, finder)
	for i, p := range e.Problems { // these say of the keys at hand what of a turn they say of the business
		switch p.Reason {
		case IssueUnknownKey:
			e.Problems[i].Detail = "the key set has no such key"
		case IssueKeysUnavailable:
			e.Problems[i].Detail = "there are no keys to verify it by"
		}
	}
	return ExportCheck{
		Verdict: e.Verdict, Issues: nonNil(e.Issues), Problems: e.Problems,
		Recorded: d.Recorded.Verdict, RecordedIssues: shown(d.Recorded.Issues), Agrees: e.Verdict == d.Recorded.Verdict,
		Claims: e.Claims, Digest: e.Digest, Algorithm: e.Algorithm,
		KeyID: e.KeyID, Thumbprint: rec.thumbprint, KeysFrom: from,
		BusinessName: clean(d.Business.Name, maxName), InterfaceURL: clean(d.Business.InterfaceURL, maxURLInput),
		MessageID: clean(d.Message.ID, maxScopeID), BodyDigest: clean(d.Message.Digest, maxScopeID),
		Sent: d.HeldTo.SentAt, Received: d.HeldTo.ReceivedAt, Exported: d.Exported,
	}
}

// usedKey remembers the thumbprint of the key that it found.
type usedKey struct {
	KeyFinder
	thumbprint string
}

func (k *usedKey) Key(ctx context.Context, kid string, alg jose.SignatureAlgorithm) (jwks.Key, error) {
	key, err := k.KeyFinder.Key(ctx, kid, alg)
	if err == nil {
		k.thumbprint, err = jwks.Thumbprint(key.Public)
	}
	return key, err
}
