package egress

import "time"

// Purpose is what a request is for; it fixes the request's limits.
type Purpose string

// The purposes of section 5.
const (
	Card                Purpose = "card"
	Metadata            Purpose = "metadata"
	JWKS                Purpose = "jwks"
	DeviceAuthorization Purpose = "device_authorization"
	Token               Purpose = "token" // token, refresh, poll; also revocation
	Message             Purpose = "message"
	Signer              Purpose = "signer"
)

// Limit is what a purpose allows.
type Limit struct {
	Body       int64         // bytes of the answer
	Timeout    time.Duration // of the whole exchange, all hops and the body
	Redirects  int           // that a GET follows
	SameOrigin bool          // redirects must stay on their origin (TR-3)
}

// Limits is the table of section 5.
var Limits = map[Purpose]Limit{
	Card:                {Body: 256 << 10, Timeout: 10 * time.Second, Redirects: 10},
	Metadata:            {Body: 64 << 10, Timeout: 10 * time.Second, Redirects: 10, SameOrigin: true},
	JWKS:                {Body: 64 << 10, Timeout: 10 * time.Second, Redirects: 10, SameOrigin: true},
	DeviceAuthorization: {Body: 32 << 10, Timeout: 15 * time.Second},
	Token:               {Body: 64 << 10, Timeout: 15 * time.Second},
	Message:             {Body: 512 << 10, Timeout: 120 * time.Second},
	Signer:              {Body: 32 << 10, Timeout: 10 * time.Second},
}
