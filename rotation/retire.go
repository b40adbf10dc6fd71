package rotation

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/pactsigner/pactsigner/custody"
)

// Retire disables every key of an issuer in custody, for good, and returns how many
// there are: those of its schedule, and what was made for it and not written there.
// Keys that are gone are none. No controller may go by the schedule any more: it would
// make another key. The schedule stays, to say what was published. Interrupted, it is
// called again.
func Retire(ctx context.Context, keyring custody.Keyring, issuer string) (keys int, err error) {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" {
		return 0, fmt.Errorf("rotation: issuer %q is not an absolute URL", issuer)
	}
	var s Schedule
	doc, err := keyring.Load(ctx, documentName(issuer, u))
	switch {
	case errors.Is(err, custody.ErrNotFound): // keys may have been made before it
	case err != nil:
		return 0, fmt.Errorf("rotation: loading the schedule: %w", err)
	default:
		if s, err = parse(doc.Data); err != nil {
			return 0, err
		}
		if s.Issuer != issuer {
			return 0, fmt.Errorf("%w: it is of issuer %q, not %q", ErrDocument, s.Issuer, issuer)
		}
	}
	var refs []string
	for _, k := range s.Keys {
		refs = append(refs, k.Ref)
	}
	for seq := s.Seq + 1; seq <= s.Seq+skipped; seq++ {
		refs = append(refs, ref(slug(issuer, u), seq))
	}
	for _, ref := range refs {
		switch err := keyring.Disable(ctx, ref); {
		case err == nil:
			keys++
		case !errors.Is(err, custody.ErrNotFound) && !errors.Is(err, custody.ErrMismatch):
			return keys, fmt.Errorf("rotation: disabling key %s: %w", ref, err)
		}
	}
	return keys, nil
}
