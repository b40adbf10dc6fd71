package server

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/internal/store/bolt"
	"github.com/pactsigner/pactsigner/internal/store/redis"
	"github.com/pactsigner/pactsigner/killswitch"
	"github.com/pactsigner/pactsigner/signer"
)

// answers is a store that always answers the same.
type answers struct {
	records
	err error
}

func (a answers) Authorize(context.Context, signer.Authorization) (signer.Authorized, error) {
	return signer.Authorized{}, a.err
}

// An answer of the store that is no is told from one that did not come, and a full
// queue is a limit.
func TestStoreResults(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want string
		full bool
	}{
		{t.Context(), nil, "ok", false},
		{t.Context(), fmt.Errorf("store: %w", signer.ErrStaleEpoch), "refused", false},
		{t.Context(), signer.ErrNotFound, "refused", false},
		{t.Context(), killswitch.ErrChanged, "refused", false},
		{t.Context(), &signer.RefusedError{Why: "unknown"}, "refused", false},
		{t.Context(), &signer.LimitedError{}, "refused", false},
		{t.Context(), redis.ErrMemoryFull, "unavailable", false},
		{t.Context(), errors.New("connection refused"), "unavailable", false},
		{t.Context(), context.DeadlineExceeded, "unavailable", false},
		{t.Context(), redis.ErrBusy, "unavailable", true},
		{t.Context(), bolt.ErrBusy, "unavailable", true},
		{left, context.Canceled, "cancelled", false},
	} {
		m := newMetrics("test")
		if _, err := (&observedStore{answers{err: c.err}, m}).Authorize(c.ctx, signer.Authorization{}); err != c.err {
			t.Errorf("%v became %v", c.err, err)
		}
		w := httptest.NewRecorder()
		m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		counted := fmt.Sprintf("pact_signer_store_request_duration_seconds_count{operation=%q,result=%q} 1\n", "authorize", c.want)
		limited := map[bool]string{false: `pact_signer_limits_hit_total{limit="queue"} 0`, true: `pact_signer_limits_hit_total{limit="queue"} 1`}[c.full]
		if body := w.Body.String(); !strings.Contains(body, counted) || !strings.Contains(body, limited+"\n") {
			t.Errorf("%v is not counted as %s, full %v", c.err, c.want, c.full)
		}
	}
}
