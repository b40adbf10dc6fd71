package config

import (
	"errors"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/rotation"
)

// RotationParams are the parameters of the issuer's key schedule, not scaled.
func (is Issuer) RotationParams() rotation.Params {
	p := rotation.Defaults()
	p.Algorithm = jose.SignatureAlgorithm(is.Algorithm)
	p.TokenTTL = is.TokenTTL
	p.Period, p.Lead, p.Overlap, p.Skew = is.Rotation.Period, is.Rotation.Lead, is.Rotation.Overlap, is.Rotation.Skew
	return p
}

// maxSkew is the widest gap between two replicas' clocks that makes sense: more
// is an alarm of the kill switch's.
const maxSkew = 20 * time.Second

// validateRotation checks the schedule's parameters, also as they are at a scale.
func (is Issuer) validateRotation(v *problems, at string, scale int) {
	v.between(at+"skew", is.Rotation.Skew, 0, maxSkew)
	if is.Rotation.Period < 0 {
		v.add(at+"period", "use 0s to rotate by command only, or a positive duration")
		return
	}
	p := is.RotationParams()
	p.Algorithm = jose.ES256 // has a check of its own
	err := p.Validate()
	var small *rotation.ParamError
	if err == nil && errors.As(p.Scaled(scale).Validate(), &small) {
		v.add(at+strings.ToLower(small.Field), "use at least %v with development.timeScale %d", small.Min*time.Duration(scale), scale)
		return
	}
	switch {
	case errors.As(err, &small):
		v.add(at+strings.ToLower(small.Field), "use at least %v", small.Min)
	case err != nil:
		v.add(strings.TrimSuffix(at, "."), "%v", err)
	}
}
