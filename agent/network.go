package agent

import (
	"context"
	"errors"
	"net/url"

	"github.com/pactsigner/pactsigner/agent/egress"
)

// Network is a network profile: a named set of rules that narrows where a
// caller's requests may go, the signer's included (SG-12). The name stands for the
// rules: what one profile fetched or began is never used or resumed under another
// (SG-7, SG-10, RS-5).
type Network struct {
	// Name is not empty: that is the name of the default profile, DefaultNetwork.
	Name string
	// Allow refuses a URL by an error. It is asked at every hop, beside the URL rules
	// and the administrator's policy. nil refuses all (TR-9).
	Allow func(context.Context, *url.URL) error
}

// defaultNetwork is the profile of the owner's own command line.
var defaultNetwork = &Network{Allow: egress.AllowAll}

// DefaultNetwork is the profile of the owner's own command line, for a task that is
// to run under the same rules: a task's network is always said (TR-9). It must not
// be changed, and a copy of it is no network.
func DefaultNetwork() *Network { return defaultNetwork }

// network is the caller's profile, or nil: nothing said is nothing allowed (TR-9).
func (c Caller) network() *Network {
	switch n := c.Network; {
	case n == defaultNetwork, n == nil && c.surface():
		return defaultNetwork
	case n == nil || n.Name == "" || n.Allow == nil:
		return nil
	default:
		return n
	}
}

// networkName is the name that records keep of the caller's profile.
func (c Caller) networkName() string {
	if n := c.network(); n != nil {
		return n.Name
	}
	return ""
}

type networkKey struct{}

// withNetwork puts a caller's profile into the context of a call, and who acts:
// every public method that may use the network begins with it. What was forgotten
// is denied.
func withNetwork(ctx context.Context, c Caller) context.Context {
	return withActor(context.WithValue(ctx, networkKey{}, c.network()), c)
}

// networkOf is the profile of a call. The error is a *Refusal (TR-9).
func networkOf(ctx context.Context) (*Network, error) {
	if n, _ := ctx.Value(networkKey{}).(*Network); n != nil {
		return n, nil
	}
	return nil, refuse(StatusBlocked, string(egress.PolicyDenied), "the caller has no network profile, so nothing is sent")
}

// mayContact is the network policy of every hop: the caller's profile, and the
// administrator's policy as it is now. A provider that is blocked is not contacted
// at all (PR-5).
func (a *Agent) mayContact(ctx context.Context, u *url.URL) error {
	n, err := networkOf(ctx)
	if err != nil {
		return err
	}
	p, err := a.policy()
	if err != nil {
		return err
	}
	switch {
	case !p.Enabled:
		return errors.New("the administrator's policy switches PACT off")
	case p.blocks(Origin(u)):
		return errors.New("the administrator blocks this provider")
	}
	return n.Allow(ctx, u)
}
