package signer

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// subjectVersion separates these derivations from any other use of the key.
const subjectVersion = "pact-sub/1"

// ErrOtherSubjectKey: the subject key is not the one that the deployment's subjects
// were derived with. A MAC returns it rather than wrong subjects.
var ErrOtherSubjectKey = errors.New("the subject key in custody is not the one that this deployment was made with: restore it from its backup")

// MAC computes HMAC-SHA-256 under the subject key; custody.Keyring is one.
type MAC interface {
	MAC(ctx context.Context, message []byte) ([]byte, error)
}

// DeriveSubject returns the subject of a caller of an issuer: "pa_" and the first
// 160 bits, in base32, of the MAC over its kind, issuer URL and id. For a device
// the id is its thumbprint, for a credential its principal. The same caller gets
// the same subject after any loss of the store.
func DeriveSubject(ctx context.Context, key MAC, kind CallerKind, issuer, id string) (string, error) {
	var message []byte
	for _, part := range []string{subjectVersion, string(kind), issuer, id} {
		message = binary.BigEndian.AppendUint32(message, uint32(len(part)))
		message = append(message, part...)
	}
	mac, err := key.MAC(ctx, message)
	if err != nil {
		return "", fmt.Errorf("derive the subject: %w", err)
	}
	if len(mac) < 20 {
		return "", fmt.Errorf("derive the subject: the MAC has %d bytes", len(mac))
	}
	return "pa_" + strings.ToLower(base32.StdEncoding.EncodeToString(mac[:20])), nil
}
