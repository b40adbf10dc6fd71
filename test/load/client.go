package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// requests gives the bytes of one HTTP/1.1 request after another; nil when there
// is none left.
type requests func() []byte

// post is a request with a JSON body.
func post(host, path, authorization, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s",
		path, host, authorization, len(body), body)
}

// get is a request without one.
func get(host, path string) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host)
}

// same repeats one request.
func same(request []byte) requests { return func() []byte { return request } }

// oneByOne hands out a list once, to all who ask.
func oneByOne(list [][]byte) requests {
	var next atomic.Int64
	return func() []byte {
		i := next.Add(1) - 1
		if i >= int64(len(list)) {
			return nil
		}
		return list[i]
	}
}

// timeout bounds one request: more than any deadline of the signer.
const timeout = 15 * time.Second

// dial is a worker that sends requests over a connection of its own. It writes
// bytes made beforehand and reads no more of the answers than it must, so that the
// generator leaves the cores to what is measured.
func dial(addr string, next requests) call {
	var (
		conn   net.Conn
		answer *bufio.Reader
	)
	return func() (int, bool) {
		request := next()
		if request == nil {
			if conn != nil {
				conn.Close()
			}
			return 0, true
		}
		if conn == nil {
			c, err := net.DialTimeout("tcp", addr, timeout)
			if err != nil {
				return 0, false
			}
			conn, answer = c, bufio.NewReader(c)
		}
		conn.SetDeadline(time.Now().Add(timeout))
		status, err := roundTrip(conn, answer, request)
		if err != nil {
			conn.Close()
			conn = nil
			return 0, false
		}
		return status, false
	}
}

// roundTrip sends a request and reads the whole answer, which must say how long
// it is.
func roundTrip(conn net.Conn, answer *bufio.Reader, request []byte) (status int, err error) {
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	line, err := answer.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, fmt.Errorf("an answer that begins with %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, err
	}
	length := -1
	for {
		if line, err = answer.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && len(name) == len("Content-Length") && strings.EqualFold(string(name), "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(string(value))); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 {
		return 0, fmt.Errorf("an answer that does not say how long it is")
	}
	_, err = answer.Discard(length)
	return status, err
}

// device is a key whose assertions are made fast.
type device struct {
	key        *ecdsa.PrivateKey
	thumbprint string
	point      []byte // X || Y
}

// newDevice derives a device's key from a number, so that a million need not be
// kept.
func newDevice(number int) device {
	seed := sha256.Sum256(fmt.Appendf(nil, "pactsigner load device %d", number))
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		panic(err) // one in 2^32 seeds is out of range; these are not
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	jwk := fmt.Sprintf(`{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, b64(point[1:33]), b64(point[33:]))
	sum := sha256.Sum256([]byte(jwk)) // RFC 7638
	return device{key, b64(sum[:]), point[1:]}
}

// assertion proves the key to a URL once, from now on for a minute.
func (d device) assertion(url string) string {
	b64 := base64.RawURLEncoding
	now := time.Now().Unix()
	header := fmt.Sprintf(`{"alg":"ES256","kid":"%s","typ":"pact-device+jwt"}`, d.thumbprint)
	claims := fmt.Sprintf(`{"iss":"%s","aud":"%s","iat":%d,"exp":%d,"jti":"%s"}`, d.thumbprint, url, now, now+60, rand.Text())
	input := b64.EncodeToString([]byte(header)) + "." + b64.EncodeToString([]byte(claims))
	digest := sha256.Sum256([]byte(input))
	r, s, err := ecdsa.Sign(rand.Reader, d.key, digest[:])
	if err != nil {
		panic(err)
	}
	signature := make([]byte, 64)
	fill(signature[:32], r)
	fill(signature[32:], s)
	return input + "." + b64.EncodeToString(signature)
}

func fill(into []byte, n *big.Int) { n.FillBytes(into) }

// rpc makes workers that share a few connections to a gRPC listener. next gives
// each call's authorization; empty when there is none left.
func rpc(addr, authority, audience string, workers int, next func() string) ([]call, io.Closer, error) {
	conns := make(connections, 2)
	for i := range conns {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(authority))
		if err != nil {
			return nil, nil, err
		}
		conns[i] = conn
	}
	calls := make([]call, workers)
	for i := range calls {
		client := signerv1.NewSignerServiceClient(conns[i%len(conns)])
		request := &signerv1.SignRequest{Audience: audience, Nonce: "load"}
		calls[i] = func() (int, bool) {
			authorization := next()
			if authorization == "" {
				return 0, true
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			_, err := client.Sign(metadata.AppendToOutgoingContext(ctx, "authorization", authorization), request)
			return restStatus(err), false
		}
	}
	return calls, conns, nil
}

type connections []*grpc.ClientConn

func (c connections) Close() error {
	for _, conn := range c {
		conn.Close()
	}
	return nil
}

// restStatus is what a gRPC answer would be on REST; 0 for one that is not the
// signer's.
func restStatus(err error) int {
	if err == nil {
		return 200
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return map[string]int{
				"INVALID_REQUEST": 400, "UNAUTHORIZED": 401, "DISABLED": 403, "AUDIENCE_NOT_REGISTERED": 422, "RATE_LIMITED": 429, "UNAVAILABLE": 503,
			}[info.Reason]
		}
	}
	return 0
}
