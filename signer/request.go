package signer

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pactsigner/pactsigner/internal/gateway"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// What a request may hold (protocol.md, Signer contract).
const (
	maxBody     = 32 << 10 // bytes
	maxNonce    = 256      // characters
	maxAudience = 512      // characters
)

func checkSign(req *signerv1.SignRequest) error {
	if err := checkText("audience", req.Audience, maxAudience); err != nil {
		return err
	}
	return checkText("nonce", req.Nonce, maxNonce)
}

func checkText(field, value string, most int) error {
	if n := utf8.RuneCountInString(value); n < 1 || n > most {
		return invalid(fmt.Sprintf("%s: must be a string of 1 to %d characters", field, most))
	}
	return nil
}

// checkKnown refuses fields that this version does not know: a caller must not
// believe that they were heeded.
func checkKnown(m protoreflect.Message) error {
	switch at := gateway.Unknown(m); {
	case at == nil:
		return nil
	case bytes.Equal(at.GetUnknown(), unreadable):
		return invalid(fmt.Sprintf("%s: cannot be decoded", at.Descriptor().Name()))
	default:
		return invalid(fmt.Sprintf("%s: has a field that this signer does not know", at.Descriptor().Name()))
	}
}

// strict refuses unknown members. Repeated ones, other cases, invalid UTF-8 and
// anything after the value are refused anyway.
var strict = json.RejectUnknownMembers(true)

// text is a JSON string that must be there; null is not one.
type text struct {
	value string
	there bool
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *text) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadToken()
	if err != nil {
		return err
	}
	if v.Kind() != '"' {
		return errNotText
	}
	t.value, t.there = v.String(), true
	return nil
}

var errNotText = errors.New("is not a string")

func (t text) optional() *string {
	if !t.there {
		return nil
	}
	return &t.value
}

// unmarshalRequest reads the body of a call of the contract into its message. It
// is stricter than protojson, which takes null, second names and other forms.
// The error names no content.
func unmarshalRequest(body []byte, m any) error {
	if len(body) > maxBody {
		return invalid(fmt.Sprintf("body: is larger than %d bytes", maxBody))
	}
	if jsontext.Value(body).Kind() != '{' {
		return invalid("body: is not a JSON object")
	}
	malformed := invalid("body: is malformed, or has an unknown or repeated member or one of the wrong type")
	switch m := m.(type) {
	case *signerv1.SignRequest:
		var b struct {
			Audience text `json:"audience"`
			Nonce    text `json:"nonce"`
		}
		if json.Unmarshal(body, &b, strict) != nil {
			return malformed
		}
		m.Audience, m.Nonce = b.Audience.value, b.Nonce.value
	case *signerv1.StatusRequest:
		if json.Unmarshal(body, &struct{}{}, strict) != nil {
			return malformed
		}
	case *signerv1.EnrollRequest:
		var b struct {
			Key jsontext.Value `json:"publicJwk"`
			// Proof is checked by the service, after the key.
			Proof text `json:"proof"`
		}
		var k struct {
			Kty text `json:"kty"`
			Crv text `json:"crv"`
			X   text `json:"x"`
			Y   text `json:"y"`
			Kid text `json:"kid"`
			Alg text `json:"alg"`
			Use text `json:"use"`
		}
		if json.Unmarshal(body, &b, strict) != nil {
			return malformed
		}
		if b.Key.Kind() != '{' || json.Unmarshal(b.Key, &k, strict) != nil {
			return invalid("publicJwk: must be an object with kty, crv, x, y, kid and, if you like, alg and use, all strings, and nothing else")
		}
		m.PublicJwk = &signerv1.PublicJwk{
			Kty: k.Kty.value, Crv: k.Crv.value, X: k.X.value, Y: k.Y.value, Kid: k.Kid.value,
			Alg: k.Alg.optional(), Use: k.Use.optional(),
		}
		m.Proof = b.Proof.value
	default:
		return fmt.Errorf("%T is no request of the contract", m)
	}
	return nil
}

// marshalResponse writes an answer of the contract, empty members included.
func marshalResponse(m any) ([]byte, error) {
	switch m := m.(type) {
	case *signerv1.SignResponse:
		return json.Marshal(struct {
			Token string `json:"token"`
			Nonce string `json:"nonce"`
		}{m.Token, m.Nonce})
	case *signerv1.StatusResponse:
		audiences := m.Audiences
		if audiences == nil {
			audiences = map[string]string{}
		}
		return json.Marshal(struct {
			Issuer    string            `json:"issuer"`
			Subject   string            `json:"subject"`
			Disabled  bool              `json:"disabled"`
			Audiences map[string]string `json:"audiences"`
		}{m.Issuer, m.Subject, m.Disabled, audiences}, json.Deterministic(true))
	case *signerv1.EnrollResponse:
		return json.Marshal(struct {
			Subject string `json:"subject"`
			Issuer  string `json:"issuer"`
		}{m.Subject, m.Issuer})
	}
	return nil, fmt.Errorf("%T is no answer of the contract", m)
}
