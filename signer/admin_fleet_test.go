package signer_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pactsigner/pactsigner/killswitch"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// A viewer sees until when each replica may sign, and what the fleet did.
func TestViewerSeesPermitsAndActivity(t *testing.T) {
	w := newAdminWorld(t, "https://pa.example.com")
	viewer := w.client(w.tokens[signer.RoleViewer])
	fleet, err := viewer.FleetStatus(t.Context(), &signerv1.FleetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(fleet.Replicas) != 1 {
		t.Fatalf("replicas are %v", fleet.Replicas)
	}
	if r := fleet.Replicas[0]; !r.PermitUntil.AsTime().Equal(r.Seen.AsTime().Add(killswitch.Defaults().Permit)) {
		t.Errorf("it was seen at %v and may sign until %v", r.Seen.AsTime(), r.PermitUntil.AsTime())
	}

	told := signer.Activity{Replica: "r9", Run: "run", Since: time.Now(), Span: 10 * time.Second, Recent: signer.ActivityCounts{Signed: 5}}
	data, err := told.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.PutActivity(t.Context(), told.Run, data); err != nil {
		t.Fatal(err)
	}
	activity, err := viewer.GetActivity(t.Context(), &signerv1.GetActivityRequest{Window: durationpb.New(5 * time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	if len(activity.Minutes) != 5 || len(activity.Replicas) != 1 || activity.Replicas[0].Replica != "r9" || activity.Replicas[0].SignedRate != 0.5 {
		t.Errorf("activity is %v", activity)
	}
	if len(activity.Missing) != 1 || !strings.Contains(activity.Missing[0], "by r1:") {
		t.Errorf("missing is %q: r1 lives and told nothing", activity.Missing)
	}
	if code, _, body := w.rest(w.tokens[signer.RoleViewer], "GET", "/v1/activity?window=90s", ""); code != 400 || !strings.Contains(string(body), "window: want whole minutes") {
		t.Errorf("a window of 90 s: %d %s", code, body)
	}
}
