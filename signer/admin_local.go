package signer

import (
	"context"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Bearer finds whose token an Authorization header holds, given its values. It takes
// as long for every token that is not accepted.
func (a *Admin) Bearer(authorization []string) (AdminToken, bool) {
	return a.authenticate(authorization)
}

// Token finds an admin token by its name.
func (a *Admin) Token(name string) (AdminToken, bool) {
	for _, t := range a.cfg.Tokens {
		if t.Name == name {
			return t, true
		}
	}
	return AdminToken{}, false
}

// As is the service for a caller in this process that speaks for the owner of a
// token, whom it has authenticated. The token's role bounds it as on the listener,
// and its name is the actor of what it does.
func (a *Admin) As(t AdminToken) signerv1.AdminServiceClient {
	return signerv1.NewAdminServiceClient(a.inProcess().Conn(func(ctx context.Context) context.Context {
		if t.Role == 0 {
			return ctx
		}
		return context.WithValue(ctx, adminVouchedKey{}, t)
	}))
}

// adminVouchedKey holds the AdminToken of a caller that As vouches for.
type adminVouchedKey struct{}
