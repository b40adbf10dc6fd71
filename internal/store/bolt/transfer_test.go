package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/pactsigner/pactsigner/internal/audit"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// A damaged record ends an export; of the audit log it says which entry it is.
func TestExportDamaged(t *testing.T) {
	ctx := context.Background()
	for name, bucket := range map[string][]byte{"audit": auditBucket, "audience": audiencesBucket, "device": devicesBucket, "schedule": schedulesBucket} {
		s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
		err := s.update(ctx, func(tx *bbolt.Tx) error {
			return tx.Bucket(bucket).Put(binary.BigEndian.AppendUint64(nil, 3), []byte("{"))
		})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Export(ctx, func(signer.Record) error { return nil })
		var damaged *audit.DamagedError
		if err == nil || errors.As(err, &damaged) != (name == "audit") || damaged != nil && damaged.Seq != 3 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What no store can have exported is not taken in.
func TestImportRefused(t *testing.T) {
	ctx := context.Background()
	device := signer.Device{Issuer: testIssuer, Thumbprint: "one", Subject: "pa_one"}
	first := audit.Chain(0, "", audit.Entry{Action: "kill"})
	gap := audit.Chain(5, first.Hash, audit.Entry{Action: "kill"})
	for name, list := range map[string][]signer.Record{
		"a device twice":     {{Device: &device}, {Device: &device}},
		"a credential twice": {{Credential: &signer.Credential{Issuer: testIssuer, ID: "a"}}, {Credential: &signer.Credential{Issuer: testIssuer, ID: "a"}}},
		"a secret twice":     {{Credential: &signer.Credential{Issuer: testIssuer, ID: "a"}}, {Credential: &signer.Credential{Issuer: testIssuer, ID: "b"}}},
		"a gap in the log":   {{Audit: &first}, {Audit: &gap}},
		"a damaged switch":   {{Device: &device}, {Switch: &killswitch.State{Epoch: killswitch.MaxEpoch + 1}}},
		"nothing":            {{}},
	} {
		s := open(t, filepath.Join(t.TempDir(), "signer.db"), Options{})
		err := s.Import(ctx, func() (signer.Record, error) {
			if len(list) == 0 {
				return signer.Record{}, io.EOF
			}
			r := list[0]
			list = list[1:]
			return r, nil
		})
		if err == nil {
			t.Errorf("%s: was imported", name)
		}
		if _, err := s.Device(ctx, testIssuer, "one"); !errors.Is(err, signer.ErrNotFound) {
			t.Errorf("%s: something is left: %v", name, err)
		}
	}
}
