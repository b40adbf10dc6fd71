package rotation

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/pactsigner/pactsigner/custody"
)

// sealed is what the store's mirror holds, sealed, of a schedule that custody has:
// all that a replica needs to go by it while custody is away. An announced one, which
// custody may never have, is mirrored as its bare document.
type sealed struct {
	Custody  uint64            `json:"custody"` // its revision of the document
	Document []byte            `json:"document"`
	Publics  map[string][]byte `json:"publics"` // by ref, PKIX
}

// copyOf is what the mirror is to hold of the schedule that this replica goes by.
func (c *Controller) copyOf(v *view) ([]byte, error) {
	if c.cfg.SealMirror == nil {
		return v.document.Data, nil
	}
	m := sealed{Custody: v.document.Revision, Document: v.document.Data, Publics: map[string][]byte{}}
	for ref, pub := range v.publics {
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			return nil, fmt.Errorf("rotation: %w", err)
		}
		m.Publics[ref] = der
	}
	data, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("rotation: %w", err)
	}
	if data = c.cfg.SealMirror(data); data == nil {
		return v.document.Data, nil
	}
	return data, nil
}

// adoptMirrored takes over the mirrored schedule if it is newer than this replica's,
// and sealed: then custody has it, though custody cannot be asked now.
func (c *Controller) adoptMirrored(ctx context.Context) error {
	v := c.view.Load()
	if c.cfg.Mirror == nil || c.cfg.OpenMirror == nil || v == nil || c.newest.Load().revision <= v.schedule.Revision {
		return nil
	}
	revision, data, err := c.cfg.Mirror.Mirrored(ctx, c.cfg.Issuer)
	if err != nil {
		return fmt.Errorf("rotation: asking the store for the schedule: %w", err)
	}
	if revision <= v.schedule.Revision {
		return nil
	}
	if data, err = c.cfg.OpenMirror(data); err != nil {
		return fmt.Errorf("rotation: revision %d of the schedule, as the store has it: %w", revision, err)
	}
	var m sealed
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("%w: the store's copy: %w", ErrDocument, err)
	}
	s, err := parse(m.Document)
	if err != nil {
		return err
	}
	if s.Revision != revision { // an old copy under a new number
		return fmt.Errorf("%w: the store's copy of revision %d is of revision %d", ErrDocument, revision, s.Revision)
	}
	publics := map[string]crypto.PublicKey{}
	for ref, der := range m.Publics {
		if publics[ref], err = x509.ParsePKIXPublicKey(der); err != nil {
			return fmt.Errorf("%w: the store's copy: key %s: %w", ErrDocument, ref, err)
		}
	}
	if err := c.adopt(ctx, custody.Document{Revision: m.Custody, Data: m.Document}, publics); err != nil {
		return err
	}
	c.cfg.Log.InfoContext(ctx, "key schedule taken over from the store, for custody is away", "revision", revision)
	return nil
}
