package agent

import "errors"

// ReasonMetadataInvalid is the code of every metadata failure (MD-4).
const ReasonMetadataInvalid = "metadata_invalid"

// ErrMetadataInvalid: the authorization server's metadata cannot be used. The
// stored business record stays as it was (MD-4).
var ErrMetadataInvalid = errors.New(ReasonMetadataInvalid)

// MetadataError says what is wrong with a metadata document; it is
// ErrMetadataInvalid.
type MetadataError struct{ Problems []Problem }

func (e *MetadataError) Error() string { return problemText(e.Problems) }

// Is makes errors.Is(err, ErrMetadataInvalid) true.
func (e *MetadataError) Is(target error) bool { return target == ErrMetadataInvalid }

// Metadata is what the agent takes from an authorization server's document
// (RFC 8414).
type Metadata struct {
	Issuer             string   `json:"issuer"`
	JWKSURI            string   `json:"jwksUri"`
	RevocationEndpoint string   `json:"revocationEndpoint,omitempty"` // empty: none that may be used
	ScopesSupported    []string `json:"scopesSupported,omitempty"`
	GrantTypes         []string `json:"grantTypes,omitempty"`
}

// CheckMetadata holds an RFC 8414 document to the card that named it: its
// device and token endpoints equal the card's byte for byte (MD-2), issuer and
// jwks_uri pass the URL rules on the metadata URL's origin (MD-3). Unknown
// members are fine. A revocation endpoint elsewhere is left out: it would be
// sent the refresh token. The error is a *MetadataError.
func CheckMetadata(data []byte, card Card, rules URLRules) (Metadata, error) {
	r := &reader{reason: ReasonMetadataInvalid}
	md := r.metadata(data, card, rules)
	if len(r.problems) > 0 {
		return Metadata{}, &MetadataError{r.problems}
	}
	return md, nil
}

func (r *reader) metadata(data []byte, card Card, rules URLRules) Metadata {
	if !card.Support || card.Profile != ProfileDelegated {
		r.add(r.reason, "", "the card does not offer delegation, so no metadata belongs to it")
		return Metadata{}
	}
	o, err := parseObject(data)
	if err != nil {
		r.add(r.reason, "", "%v", err)
		return Metadata{}
	}
	for _, f := range []struct{ name, card, want string }{
		{"device_authorization_endpoint", "deviceAuthorizationUrl", card.DeviceAuthorizationURL},
		{"token_endpoint", "tokenUrl", card.TokenURL},
	} {
		if got := r.text(o, "", f.name, true); got != "" && got != f.want {
			r.add(r.reason, f.name, "is not the card's %s, %s", f.card, f.want)
		}
	}
	md := Metadata{
		Issuer:             r.text(o, "", "issuer", true),
		JWKSURI:            r.text(o, "", "jwks_uri", true),
		RevocationEndpoint: r.text(o, "", "revocation_endpoint", false),
		ScopesSupported:    r.texts(o, "", "scopes_supported", false),
		GrantTypes:         r.texts(o, "", "grant_types_supported", false),
	}
	origin := originOf(card.MetadataURL)
	for _, f := range []struct{ name, raw string }{{"issuer", md.Issuer}, {"jwks_uri", md.JWKSURI}} {
		if f.raw == "" {
			continue
		}
		u, err := rules.Check(f.raw)
		if err != nil {
			r.add(r.reason, f.name, "%v", err)
		} else if Origin(u) != origin {
			r.add(r.reason, f.name, "is on %s, and the metadata on %s", Origin(u), origin)
		}
	}
	if u, err := rules.Check(md.RevocationEndpoint); err != nil || Origin(u) != origin {
		md.RevocationEndpoint = ""
	}
	return md
}
