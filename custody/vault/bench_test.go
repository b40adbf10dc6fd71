package vault

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/test/servers"
)

// BenchmarkCoalescing compares signing through the queue with one transit/sign for
// each token, on the same Vault, by 256 callers. It prints the ratio.
func BenchmarkCoalescing(b *testing.B) {
	for _, audit := range []bool{false, true} {
		b.Run(fmt.Sprintf("audit=%t", audit), func(b *testing.B) {
			f := startFixture(b, servers.VaultOptions{Audit: audit})
			cfg := f.deployment(b, nil)
			k := openKeyring(b, cfg)
			mustCreate(b, k, "a", jose.ES256)
			key, err := k.transit.key(b.Context(), cfg.Prefix+"-a")
			if err != nil {
				b.Fatal(err)
			}
			digest := sha256.Sum256([]byte("x"))

			session, err := k.client.login.state()
			if err != nil {
				b.Fatal(err)
			}
			// The same call as for a batch, without one, by a client that keeps a
			// connection for each caller.
			direct := &http.Client{Transport: &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256}}
			defer direct.CloseIdleConnections()
			body := appendBatch(nil, 1, []*item{{digest: digest}})
			body = bytes.Replace(body, []byte(`"batch_input":[{`), nil, 1)
			body = bytes.Replace(body, []byte(`}]}`), []byte(`}`), 1)
			single := func(ctx context.Context) error {
				r, err := http.NewRequestWithContext(ctx, http.MethodPut, f.Addr+"/v1/transit/sign/"+key.name, bytes.NewReader(body))
				if err != nil {
					return err
				}
				r.Header.Set("X-Vault-Token", session.token)
				resp, err := direct.Do(r)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				answer, err := io.ReadAll(resp.Body)
				if err == nil && !bytes.Contains(answer, []byte(versionOne)) {
					err = fmt.Errorf("Vault says %d: %s", resp.StatusCode, answer)
				}
				return err
			}
			queued := func(ctx context.Context) error {
				_, err := k.Sign(ctx, "a", digest[:])
				return err
			}
			var one, many float64
			for b.Loop() {
				one += perSecond(b, single)
				many += perSecond(b, queued)
			}
			b.ReportMetric(one/float64(b.N), "single/s")
			b.ReportMetric(many/float64(b.N), "queued/s")
			b.ReportMetric(many/one, "ratio")
		})
	}
}

// perSecond lets 256 callers sign for two seconds.
func perSecond(b *testing.B, sign func(ctx context.Context) error) float64 {
	b.Helper()
	started := time.Now()
	var done atomic.Int64
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			for time.Since(started) < 2*time.Second {
				if err := sign(b.Context()); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(started).Seconds()
}
