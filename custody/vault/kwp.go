package vault

import (
	"crypto/aes"
	"crypto/subtle"
	"encoding/binary"
)

// wrapKWP wraps a key with padding as RFC 5649 has it, which is how Vault takes a
// key that is imported. kek is an AES key.
func wrapKWP(kek, key []byte) ([]byte, error) {
	block, err := aes.NewCipher(kek)
	if err != nil {
		return nil, err
	}
	n := (len(key) + 7) / 8
	out := make([]byte, 8+8*n)
	binary.BigEndian.PutUint32(out, 0xA65959A6)
	binary.BigEndian.PutUint32(out[4:], uint32(len(key)))
	copy(out[8:], key)
	if n == 1 {
		block.Encrypt(out, out)
		return out, nil
	}
	// RFC 3394 section 2.2.1, with the first block as its initial value.
	var b [16]byte
	copy(b[:8], out[:8])
	for j := range 6 {
		for i := 1; i <= n; i++ {
			r := out[8*i : 8*i+8]
			copy(b[8:], r)
			block.Encrypt(b[:], b[:])
			copy(r, b[8:])
			var t [8]byte
			binary.BigEndian.PutUint64(t[:], uint64(n*j+i))
			subtle.XORBytes(b[:8], b[:8], t[:])
		}
	}
	copy(out, b[:8])
	return out, nil
}
