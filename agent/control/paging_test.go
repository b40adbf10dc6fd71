package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/pactsigner/pactsigner/agent"
	agentv1 "github.com/pactsigner/pactsigner/proto/pact/agent/v1"
)

// CP-3: the pages of a list, of whatever size, are the list: in its order, nothing
// twice and nothing left out.
func TestPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		views := make([]agent.GrantView, rapid.IntRange(0, 120).Draw(t, "items"))
		for i := range views {
			views[i] = agent.GrantView{ID: fmt.Sprintf("grant-%d", i), State: "active"}
		}
		size := rapid.SampledFrom([]int32{0, 1, 2, 7, 50, 119, 120, 200}).Draw(t, "size")
		var ids []string
		req := &agentv1.ListGrantsRequest{PageSize: size}
		for n := 0; ; n++ {
			page, next, err := pageOf[agentv1.Grant]("grants", views, func(v agent.GrantView) string { return v.ID }, req)
			if err != nil {
				t.Fatal(err)
			}
			limit := int(size)
			if limit == 0 {
				limit = pageSize
			}
			if len(page) > limit || len(page) < limit && next != "" || n > 0 && len(page) == 0 {
				t.Fatalf("page %d has %d items of %d", n, len(page), limit)
			}
			for _, g := range page {
				ids = append(ids, g.Id)
			}
			if next == "" {
				break
			}
			if len(next) > limits["page_token"] {
				t.Fatalf("the page token has %d characters", len(next))
			}
			req.PageToken = next
		}
		if len(ids) != len(views) || !slices.EqualFunc(ids, views, func(id string, v agent.GrantView) bool { return id == v.ID }) {
			t.Fatalf("the pages are %v", ids)
		}
	})
}

// A page ends early where its items are large, but always has one.
func TestPagesAreBounded(t *testing.T) {
	views := make([]agent.GrantView, 4)
	for i := range views {
		views[i] = agent.GrantView{ID: fmt.Sprintf("grant-%d", i), BusinessName: strings.Repeat("x", maxPageBytes*2/3)}
	}
	views[2].BusinessName = strings.Repeat("x", 2*maxPageBytes)
	req := &agentv1.ListGrantsRequest{PageSize: 200}
	for i := range views {
		page, next, err := pageOf[agentv1.Grant]("grants", views, func(v agent.GrantView) string { return v.ID }, req)
		if err != nil || len(page) != 1 || page[0].Id != views[i].ID || (next == "") != (i == 3) {
			t.Fatalf("page %d: %d items, next %q, %v", i, len(page), next, err)
		}
		req.PageToken = next
	}
}

// A page that begins after an item which is gone begins after the one before that, so
// that who decides what a page shows comes to the end of the list.
func TestPageAfterWhatIsGone(t *testing.T) {
	id := func(v agent.GrantView) string { return v.ID }
	views := []agent.GrantView{{ID: "grant-1"}, {ID: "grant-2"}}
	_, next, err := pageOf[agentv1.Grant]("grants", views, id, &agentv1.ListGrantsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	if page, last, err := pageOf[agentv1.Grant]("grants", views[1:], id, &agentv1.ListGrantsRequest{PageToken: next}); err != nil || len(page) != 1 || page[0].Id != "grant-2" || last != "" {
		t.Errorf("after the first, which is gone: %v, %q, %v", page, last, err)
	}
	for i := range 6 {
		views = append(views, agent.GrantView{ID: fmt.Sprint("grant-", i+3)})
	}
	req := &agentv1.ListGrantsRequest{PageSize: 3}
	_, req.PageToken, _ = pageOf[agentv1.Grant]("grants", views, id, req) // 1, 2, 3
	_, req.PageToken, _ = pageOf[agentv1.Grant]("grants", views, id, req) // 4, 5, 6
	if page, _, err := pageOf[agentv1.Grant]("grants", slices.Delete(slices.Clone(views), 3, 6), id, req); err != nil || len(page) != 2 || page[0].Id != "grant-7" {
		t.Errorf("after a page that is gone: %v, %v", page, err)
	}
	if _, _, err := pageOf[agentv1.Grant]("receipts", views, id, &agentv1.ListGrantsRequest{PageToken: next}); err == nil {
		t.Error("a page of another list is given")
	}
}

// A page token goes on with the list that gave it out, as it was asked for.
func TestPageOfAnotherList(t *testing.T) {
	views := []agent.ApprovalView{{ID: "approval-1"}, {ID: "approval-2"}}
	id := func(v agent.ApprovalView) string { return v.ID }
	for _, all := range []bool{false, true} {
		req := &agentv1.ListApprovalsRequest{PageSize: 1, All: all}
		_, next, err := pageOf[agentv1.Approval](filtered("approvals", all), views, id, req)
		if err != nil || next == "" {
			t.Fatalf("%q, %v", next, err)
		}
		req.PageToken = next
		if page, _, err := pageOf[agentv1.Approval](filtered("approvals", all), views, id, req); err != nil || len(page) != 1 {
			t.Errorf("all %v: %v, %v", all, page, err)
		}
		for _, other := range []string{filtered("approvals", !all), filtered("reviews", all)} {
			if page, _, err := pageOf[agentv1.Approval](other, views, id, req); reasonOf(status.Convert(err)) != codeInvalid {
				t.Errorf("%s goes on with all %v: %v, %v", other, all, page, err)
			}
		}
	}
}
