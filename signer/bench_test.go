package signer_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkSign signs over REST, load generator included, and reports how that
// compares with signatures alone on the same cores, measured in the same run.
func BenchmarkSign(b *testing.B) {
	b.Run("credential", func(b *testing.B) { benchmarkSign(b, (*contractWorld).credentialCaller) })
	b.Run("device", func(b *testing.B) { benchmarkSign(b, (*contractWorld).deviceCaller) })
}

// connections is how many callers there are at a time.
const connections = 64

func benchmarkSign(b *testing.B, newCaller func(*contractWorld) caller) {
	w := newContractWorld(b, func(c *worldConfig) { c.log = slog.New(slog.NewJSONHandler(io.Discard, nil)) })
	c := newCaller(w)
	requests := make([][]byte, b.N)
	for i := range requests {
		requests[i] = fmt.Appendf(nil, "POST /pact/sign HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: %s\r\nContent-Length: %d\r\n\r\n%s",
			w.address, c.auth("/pact/sign"), len(goodSign), goodSign)
	}
	before := rawSignatures(b)
	var (
		next    atomic.Int64
		running sync.WaitGroup
	)
	b.ResetTimer()
	began := time.Now()
	for range connections {
		running.Go(func() {
			conn, err := net.Dial("tcp", w.address)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				if _, err := conn.Write(requests[i]); err != nil {
					b.Error(err)
					return
				}
				resp, err := http.ReadResponse(answers, nil)
				if err != nil {
					b.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), `{"token":"`) {
					b.Errorf("%d %s, %v", resp.StatusCode, body, err)
					return
				}
			}
		})
	}
	running.Wait()
	perSecond := float64(b.N) / time.Since(began).Seconds()
	b.StopTimer()
	raw := (before + rawSignatures(b)) / 2
	b.ReportMetric(perSecond, "tokens/s")
	b.ReportMetric(raw, "raw/s")
	b.ReportMetric(100*perSecond/raw, "%raw")
}

// rawSignatures is how many ES256 signatures a second all cores make.
func rawSignatures(b *testing.B) float64 {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	digest := sha256.Sum256([]byte("x"))
	var (
		n       atomic.Int64
		running sync.WaitGroup
	)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for time.Since(began) < time.Second {
				if _, err := ecdsa.SignASN1(rand.Reader, key, digest[:]); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	running.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}
