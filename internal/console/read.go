package console

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

const (
	// readTimeout bounds how long a page waits for what it shows.
	readTimeout = 5 * time.Second
	// auditShown is how many entries of the audit log are shown.
	auditShown = 20
)

// reading is what was read for one page. Each part can fail by itself.
type reading struct {
	began    time.Time // by this replica's clock
	fleet    answer[*signerv1.FleetStatusResponse]
	kills    answer[*signerv1.KillStatusResponse]
	keys     answer[*signerv1.ListKeysResponse]
	activity answer[*signerv1.GetActivityResponse]
	store    answer[*signerv1.StoreState]
	audit    answer[[]*signerv1.AuditEntry] // the last, oldest first
}

// answer is one part of a reading, or why there is none.
type answer[T any] struct {
	value T
	err   error
}

// why says in a sentence why there is no answer.
func (a answer[T]) why() string {
	switch status.Code(a.err) {
	case codes.Unimplemented:
		return "This signer does not tell."
	case codes.DeadlineExceeded, codes.Canceled:
		return "There was no answer within " + span(readTimeout) + "."
	}
	return sentence(status.Convert(a.err).Message())
}

// read asks for all parts at once.
func (c *Console) read(ctx context.Context, service signerv1.AdminServiceClient) *reading {
	r := &reading{began: c.cfg.Now()}
	var all sync.WaitGroup
	all.Go(func() { r.fleet.value, r.fleet.err = service.FleetStatus(ctx, &signerv1.FleetStatusRequest{}) })
	all.Go(func() { r.kills.value, r.kills.err = service.KillStatus(ctx, &signerv1.KillStatusRequest{}) })
	all.Go(func() { r.keys.value, r.keys.err = service.ListKeys(ctx, &signerv1.ListKeysRequest{}) })
	all.Go(func() { r.activity.value, r.activity.err = service.GetActivity(ctx, &signerv1.GetActivityRequest{}) })
	all.Go(func() {
		r.store.value, r.store.err = service.GetState(ctx, &signerv1.GetStateRequest{})
		r.audit.value, r.audit.err = c.tail.read(ctx, service, r.store)
	})
	all.Wait()
	return r
}

// auditTail reads the end of the audit log, which is listed from its beginning.
type auditTail struct {
	mu   sync.Mutex
	last uint64 // the newest entry that was seen
}

// read starts from the newest entry that the store is said to have, or, where nobody
// can say, from the newest one that was seen before.
func (a *auditTail) read(ctx context.Context, service signerv1.AdminServiceClient, store answer[*signerv1.StoreState]) ([]*signerv1.AuditEntry, error) {
	a.mu.Lock()
	last := a.last
	a.mu.Unlock()
	head := store.value.GetStoreHead()
	switch {
	case head != nil:
		last = head.Seq
	case store.err == nil && store.value.GetCondition() == "ok":
		last = 0 // the log is empty
	case last == 0 && store.err != nil:
		return nil, store.err
	case last == 0:
		return nil, status.Error(codes.Unavailable, "it is not known where the log ends: "+store.value.GetProblem())
	}
	req := &signerv1.ListAuditRequest{PageSize: 10 * auditShown}
	if last > auditShown {
		req.PageToken = strconv.FormatUint(last-auditShown, 10)
	}
	var tail []*signerv1.AuditEntry
	for range 5 { // what was appended meanwhile is on the first page
		resp, err := service.ListAudit(ctx, req)
		if err != nil {
			return nil, err
		}
		tail = append(tail, resp.Entries...)
		tail = tail[max(0, len(tail)-auditShown):]
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if len(tail) > 0 {
		a.mu.Lock()
		a.last = tail[len(tail)-1].Seq
		a.mu.Unlock()
	}
	return tail, nil
}
