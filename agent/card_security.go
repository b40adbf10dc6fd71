package agent

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// deviceScheme is an OAuth scheme with the device-code flow.
type deviceScheme struct {
	path, deviceURL, tokenURL, refreshURL, metadataURL string
	scopes                                             []Scope
}

// security finds the identity scheme by type (DI-9), and the delegation scheme
// that a requirement names together with it.
func (r *cardReader) security(o object, card *Card) {
	var identity []string
	isIdentity := map[string]bool{}
	devices := map[string]deviceScheme{}
	schemes, _ := r.object(o, "", "securitySchemes", false)
	if r.tooMany(len(schemes), "securitySchemes") {
		schemes = nil
	}
	for _, m := range schemes {
		path := "securitySchemes." + m.name + "."
		s, err := parseObject(m.value)
		if err != nil {
			r.add(ReasonInvalidCard, strings.TrimSuffix(path, "."), "must be an object")
			continue
		}
		if h, ok := r.object(s, path, "httpAuthSecurityScheme", false); ok {
			path := path + "httpAuthSecurityScheme."
			scheme := r.text(h, path, "scheme", true)
			format := r.text(h, path, "bearerFormat", false)
			if strings.EqualFold(scheme, "Bearer") && strings.EqualFold(format, "JWT") {
				identity = append(identity, m.name)
				isIdentity[m.name] = true
			}
		}
		if oauth, ok := r.object(s, path, "oauth2SecurityScheme", false); ok {
			if d, ok := r.deviceScheme(oauth, path+"oauth2SecurityScheme."); ok {
				devices[m.name] = d
			}
		}
	}

	var alone, delegation []string
	for i, req := range r.objects(o, "", "securityRequirements", false) {
		path := fmt.Sprintf("securityRequirements[%d].", i)
		named, _ := r.object(req, path, "schemes", false)
		if r.tooMany(len(named), path+"schemes") {
			continue
		}
		ids, devs, others := 0, []string(nil), 0
		for _, m := range named {
			if _, ok := devices[m.name]; ok {
				devs = append(devs, m.name)
			} else if isIdentity[m.name] {
				ids++
			} else {
				others++
			}
		}
		switch {
		case ids == 1 && len(named) == 1:
			alone = append(alone, named[0].name)
		case ids > 0 && others == 0:
			delegation = append(delegation, devs...)
		}
	}
	switch {
	case len(identity) == 0:
		r.add(ReasonIdentityMissing, "securitySchemes", "none is an httpAuthSecurityScheme with scheme %q and bearerFormat %q", "Bearer", "JWT")
	case len(alone) == 0:
		r.add(ReasonIdentityNotAlone, "securityRequirements", "none names the identity scheme (%s) alone", strings.Join(identity, ", "))
	default:
		card.IdentityScheme = slices.Min(alone) // two names of one scheme take the same token (DI-9)
	}
	slices.Sort(delegation)
	delegation = slices.Compact(delegation)
	card.Profile = ProfileIdentity
	for _, m := range schemes {
		if _, ok := devices[m.name]; ok && !slices.Contains(delegation, m.name) {
			r.advise("securityRequirements", "none names %s together with the identity scheme, so delegation through it is not offered", m.name)
		}
	}
	if len(delegation) > 1 {
		r.add(ReasonDelegationAmbiguous, "securityRequirements", "more than one device-code scheme goes with the identity scheme: %s", strings.Join(delegation, ", "))
	}
	for _, name := range delegation {
		d := devices[name]
		card.Profile, card.DelegationScheme, card.Scopes = ProfileDelegated, name, d.scopes
		card.DeviceAuthorizationURL, card.TokenURL, card.RefreshURL, card.MetadataURL = d.deviceURL, d.tokenURL, d.refreshURL, d.metadataURL
		if d.refreshURL == "" {
			card.RefreshURL = d.tokenURL
		}
		for _, f := range []struct{ name, raw string }{
			{"flows.deviceCode.deviceAuthorizationUrl", d.deviceURL},
			{"flows.deviceCode.tokenUrl", d.tokenURL},
			{"flows.deviceCode.refreshUrl", d.refreshURL},
			{"oauth2MetadataUrl", d.metadataURL},
		} {
			u := r.url(d.path+f.name, f.raw)
			if u != nil && card.Origin != "" && Origin(u) != card.Origin {
				r.add(ReasonDelegationCrossOrigin, d.path+f.name, "is on %s, and the interface on %s", Origin(u), card.Origin)
			}
		}
	}
}

// scopeID is RFC 6749 section 3.3's scope-token.
var scopeID = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]+$`)

func (r *cardReader) deviceScheme(oauth object, path string) (deviceScheme, bool) {
	d := deviceScheme{path: path}
	flows, _ := r.object(oauth, path, "flows", false)
	flow, ok := r.object(flows, path+"flows.", "deviceCode", false)
	if !ok {
		return d, false
	}
	d.metadataURL = r.text(oauth, path, "oauth2MetadataUrl", true)
	path += "flows.deviceCode."
	d.deviceURL = r.text(flow, path, "deviceAuthorizationUrl", true)
	d.tokenURL = r.text(flow, path, "tokenUrl", true)
	d.refreshURL = r.text(flow, path, "refreshUrl", false)
	scopes, _ := r.object(flow, path, "scopes", true)
	if r.tooMany(len(scopes), path+"scopes") {
		scopes = nil
	}
	for i, m := range scopes {
		if !scopeID.MatchString(m.name) {
			r.add(ReasonInvalidCard, path+"scopes", "%q is not a scope id", m.name)
		}
		text := r.text(scopes, path+"scopes.", m.name, false)
		if strings.TrimSpace(text) == "" {
			r.advise(path+"scopes."+m.name, "has no description, which is what the user reads and what tells whether it changes anything")
		} else if ClassifyScope(m.name, text) == EffectUnknown {
			r.advise(path+"scopes."+m.name, "neither id nor description says whether it reads or changes something: agents will treat it as a change")
		}
		if i < maxScopes {
			d.scopes = append(d.scopes, newScope(m.name, text))
		}
	}
	if len(scopes) > maxScopes {
		r.advise(path+"scopes", "only the first %d of %d are read", maxScopes, len(scopes))
	}
	return d, true
}
