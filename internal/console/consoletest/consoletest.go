// Package consoletest is an admin service of made-up fleets, for tests of the
// operator's page: what a test would need a fleet, hours or a broken store for.
package consoletest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// The issuers of made-up fleets, and the tokens that their admin service takes.
const (
	Issuer      = "https://pa.example.com"
	Other       = "https://agents.example.org"
	ViewerToken = "pact_admin_viewer"
	AdminToken  = "pact_admin_admin"
)

// Service is an admin service that answers with what its fields hold. It implements
// console.Admin.
type Service struct {
	signerv1.AdminServiceClient // nil: what is not here must not be called

	Tokens   []signer.AdminToken
	Fleet    *signerv1.FleetStatusResponse
	Keys     []*signerv1.Key
	Kills    []*signerv1.KillEntry
	Activity *signerv1.GetActivityResponse
	State    *signerv1.StoreState
	Audit    []*signerv1.AuditEntry
	// Fails is the error of a method, by its name; "" is that of all.
	Fails map[string]error
	// Roles are the roles that callers had.
	Roles map[signer.Role]bool
}

// Bearer implements console.Admin.
func (s *Service) Bearer(authorization []string) (signer.AdminToken, bool) {
	if len(authorization) != 1 {
		return signer.AdminToken{}, false
	}
	hash := signer.Hash(sha256.Sum256([]byte(strings.TrimPrefix(authorization[0], "Bearer "))))
	for _, t := range s.Tokens {
		if t.Hash == hash {
			return t, true
		}
	}
	return signer.AdminToken{}, false
}

// Token implements console.Admin.
func (s *Service) Token(name string) (signer.AdminToken, bool) {
	for _, t := range s.Tokens {
		if t.Name == name {
			return t, true
		}
	}
	return signer.AdminToken{}, false
}

// As implements console.Admin.
func (s *Service) As(t signer.AdminToken) signerv1.AdminServiceClient {
	s.Roles[t.Role] = true
	return s
}

func (s *Service) fail(method string) error {
	if err := s.Fails[""]; err != nil {
		return err
	}
	return s.Fails[method]
}

// FleetStatus implements signerv1.AdminServiceClient, as the methods below do.
func (s *Service) FleetStatus(context.Context, *signerv1.FleetStatusRequest, ...grpc.CallOption) (*signerv1.FleetStatusResponse, error) {
	return s.Fleet, s.fail("FleetStatus")
}

// KillStatus lists the entries in force.
func (s *Service) KillStatus(context.Context, *signerv1.KillStatusRequest, ...grpc.CallOption) (*signerv1.KillStatusResponse, error) {
	return &signerv1.KillStatusResponse{Epoch: s.Fleet.Epoch, Entries: s.Kills}, s.fail("KillStatus")
}

// ListKeys lists the keys of all issuers.
func (s *Service) ListKeys(context.Context, *signerv1.ListKeysRequest, ...grpc.CallOption) (*signerv1.ListKeysResponse, error) {
	return &signerv1.ListKeysResponse{Keys: s.Keys}, s.fail("ListKeys")
}

// GetActivity tells of the last hour.
func (s *Service) GetActivity(context.Context, *signerv1.GetActivityRequest, ...grpc.CallOption) (*signerv1.GetActivityResponse, error) {
	if s.Activity == nil {
		return nil, status.Error(codes.Unimplemented, "method GetActivity not implemented")
	}
	return s.Activity, s.fail("GetActivity")
}

// GetState tells of the store.
func (s *Service) GetState(context.Context, *signerv1.GetStateRequest, ...grpc.CallOption) (*signerv1.StoreState, error) {
	return s.State, s.fail("GetState")
}

// ListAudit pages through Audit as the signer does.
func (s *Service) ListAudit(_ context.Context, req *signerv1.ListAuditRequest, _ ...grpc.CallOption) (*signerv1.ListAuditResponse, error) {
	after := uint64(0)
	if req.PageToken != "" {
		var err error
		if after, err = strconv.ParseUint(req.PageToken, 10, 64); err != nil {
			return nil, status.Error(codes.InvalidArgument, "page_token")
		}
	}
	resp := &signerv1.ListAuditResponse{}
	for _, e := range s.Audit {
		if e.Seq > after && len(resp.Entries) < int(req.PageSize) {
			resp.Entries = append(resp.Entries, e)
			after = e.Seq
		}
	}
	if len(resp.Entries) == int(req.PageSize) {
		resp.NextPageToken = strconv.FormatUint(after, 10)
	}
	return resp, s.fail("ListAudit")
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Calm is a fleet of three replicas at a time, with one issuer whose key has signed
// for days.
func Calm(now time.Time) *Service {
	token := func(name, secret string, role signer.Role) signer.AdminToken {
		return signer.AdminToken{Name: name, Role: role, Hash: sha256.Sum256([]byte(secret))}
	}
	s := &Service{
		Tokens: []signer.AdminToken{token("night-desk", ViewerToken, signer.RoleViewer), token("initial", AdminToken, signer.RoleAdmin)},
		Roles:  map[signer.Role]bool{}, Fails: map[string]error{},
		State: &signerv1.StoreState{Condition: "ok", Kind: "redis", Store: "store-1", Found: "store-1"},
		Fleet: &signerv1.FleetStatusResponse{Epoch: 7, Version: "1.4.0", Replica: "pact-signer-7d9f-a", Time: stamp(now)},
	}
	for i, name := range []string{"pact-signer-7d9f-a", "pact-signer-7d9f-b", "pact-signer-7d9f-c"} {
		seen := now.Add(-time.Duration(200+250*i) * time.Millisecond)
		s.Fleet.Replicas = append(s.Fleet.Replicas, &signerv1.Replica{
			Id: name, Version: "1.4.0", Epoch: 7, Seen: stamp(seen), PermitUntil: stamp(seen.Add(3 * time.Second)), Ready: true,
			Revisions: map[string]uint64{Issuer: 12}, ClockOffset: durationpb.New(time.Duration(4-3*i) * time.Millisecond),
		})
	}
	s.Fleet.Issuers = []*signerv1.IssuerStatus{{
		Issuer: Issuer, Algorithm: "ES256", TokenTtl: durationpb.New(2 * time.Minute), Enrolment: "token", ScheduleRevision: 12,
		Devices: 184_223, Credentials: 41, Audiences: 17, Ready: true, SignerUrl: "https://signer.example.com",
	}}
	s.AddKey(Issuer, "9f3KQm2vWcX0aH7tYpLzR1dE5sNbUoJg8iTqVxCwMfA", "signing", now.Add(-11*24*time.Hour), now.Add(-11*24*time.Hour+time.Hour), time.Time{}, time.Time{})
	s.Activity = &signerv1.GetActivityResponse{Time: stamp(now)}
	first := now.Truncate(time.Minute).Add(-59 * time.Minute)
	for i := range 60 {
		m := &signerv1.ActivityMinute{Start: stamp(first.Add(time.Duration(i) * time.Minute)), Signed: uint64(1100 + 37*i%260 + 90*(i%7)), Refused: uint64(i * i % 5)}
		if i == 59 {
			m.Signed /= 3
		}
		s.Activity.Minutes = append(s.Activity.Minutes, m)
	}
	for i, r := range s.Fleet.Replicas {
		s.Activity.Replicas = append(s.Activity.Replicas, &signerv1.ReplicaActivity{
			Replica: r.Id, Since: stamp(now.Add(-26 * time.Hour)), Reported: stamp(now.Add(-time.Duration(i+1) * time.Second)), SignedRate: 8.1 - float64(i)*0.4, RefusedRate: 0.1,
		})
	}
	for i, act := range []struct{ actor, action, target, reason string }{
		{"initial", "audience.set", "https://air.example.net", "onboarding"}, {"initial", "credential.create", "cred-7hq2", "batch jobs"},
		{"ops@example.com", "enrollment_token.create", "tok-19", ""}, {"device:k3J…", "device.enrol", "k3JwT0", ""},
		{"ops@example.com", "kill", "device k3JwT0", "lost phone, ticket 4711"}, {"ops@example.com", "resume", "device k3JwT0", "found again"},
	} {
		for n := range 5 {
			s.Audit = append(s.Audit, &signerv1.AuditEntry{
				Seq: uint64(len(s.Audit) + 1), Time: stamp(now.Add(-time.Duration(40-i*5-n) * 13 * time.Minute)), Actor: act.actor, Action: act.action,
				Issuer: Issuer, Target: fmt.Sprint(act.target), Reason: act.reason,
			})
		}
	}
	s.State.StoreHead = &signerv1.AuditHead{Seq: uint64(len(s.Audit))}
	return s
}

// AddKey puts a key on an issuer's schedule. Times that are zero are not planned.
func (s *Service) AddKey(issuer, kid, state string, publish, sign, retire, remove time.Time) *signerv1.Key {
	k := &signerv1.Key{
		Issuer: issuer, Kid: kid, Algorithm: "ES256", State: state, Replicas: uint32(len(s.Fleet.Replicas)),
		PublishAt: stamp(publish), SignAt: stamp(sign), RetireAt: stamp(retire), RemoveAt: stamp(remove),
	}
	if issuer == Other {
		k.Algorithm = "RS256"
	}
	if state == "published" || state == "signing" || state == "retiring" {
		for _, r := range s.Fleet.Replicas {
			k.ServedBy = append(k.ServedBy, r.Id)
		}
	}
	s.Keys = append(s.Keys, k)
	return k
}

// NextKID is the key that takes over in Published and Retiring.
const NextKID = "Tz81bYwQeRk4uPnXhD6vMjSg2LcAo9fHiK0sVtZxBqE"

// Published is a rotation whose next key takes over in that long.
func Published(now time.Time, in time.Duration) *Service {
	s := Calm(now)
	sign := now.Add(in)
	s.Keys[0].RetireAt, s.Keys[0].RemoveAt = stamp(sign), stamp(sign.Add(time.Hour))
	s.AddKey(Issuer, NextKID, "published", sign.Add(-time.Hour), sign, time.Time{}, time.Time{})
	s.Fleet.Issuers[0].NextSignAt = stamp(sign)
	return s
}

// Retiring is a rotation whose next key took over that long ago.
func Retiring(now time.Time, ago time.Duration) *Service {
	s := Published(now, -ago)
	s.Keys[0].State, s.Keys[1].State = "retiring", "signing"
	s.Fleet.Issuers[0].NextSignAt = nil
	return s
}

// Postponed is a rotation that one replica holds up.
func Postponed(now time.Time) *Service {
	s := Published(now, 6*time.Minute)
	k := s.Keys[1]
	k.PublishAt = stamp(k.SignAt.AsTime().Add(-time.Hour - 80*time.Second))
	k.ServedBy = k.ServedBy[:2]
	s.Fleet.Replicas[2].Revisions[Issuer] = 11
	return s
}

// Emergency is a compromised key, revoked, whose fresh key waits for a replica.
func Emergency(now time.Time) *Service {
	s := Calm(now)
	s.Keys[0].State, s.Keys[0].ServedBy = "revoked", nil
	s.Keys[0].RevokedAt, s.Keys[0].RetireAt = stamp(now.Add(-9*time.Second)), stamp(now.Add(-9*time.Second))
	k := s.AddKey(Issuer, NextKID, "published", now.Add(-9*time.Second), time.Time{}, time.Time{}, time.Time{})
	k.ServedBy = k.ServedBy[:2]
	s.Fleet.Replicas[2].Revisions[Issuer] = 11
	for _, r := range s.Fleet.Replicas[:2] {
		r.Revisions[Issuer] = 13
	}
	s.Fleet.Issuers[0].ScheduleRevision, s.Fleet.Issuers[0].Ready, s.Fleet.Issuers[0].Why = 13, false, "no key signs"
	return s
}

// Revoked is the same a while later: the fresh key signs.
func Revoked(now time.Time) *Service {
	s := Calm(now)
	at := now.Add(-40 * time.Minute)
	s.Keys[0].State, s.Keys[0].ServedBy, s.Keys[0].RevokedAt, s.Keys[0].RetireAt = "revoked", nil, stamp(at), stamp(at)
	s.AddKey(Issuer, NextKID, "signing", at, at.Add(2*time.Second), time.Time{}, time.Time{})
	return s
}

// Throw throws the switch, as of that long ago.
func (s *Service) Throw(ago time.Duration, kind, value, issuer, reason string, lasts time.Duration) {
	now := s.Fleet.Time.AsTime()
	e := &signerv1.KillEntry{
		Id: fmt.Sprintf("k7q2m%dxw", len(s.Kills)), Scope: &signerv1.Scope{Kind: kind, Value: value, Issuer: issuer}, Reason: reason, Actor: "ops@example.com",
		Time: stamp(now.Add(-ago)), Epoch: s.Fleet.Epoch,
	}
	if lasts > 0 {
		e.Expires = stamp(now.Add(lasts - ago))
	}
	s.Kills = append(s.Kills, e)
	s.Fleet.Kills = s.Kills
	if kind == "all" {
		for _, i := range s.Fleet.Issuers {
			i.Ready, i.Why = false, "the kill switch is on"
		}
	}
}

// AddOther adds a second issuer, with the keys of a long history.
func (s *Service) AddOther() {
	now := s.Fleet.Time.AsTime()
	for _, r := range s.Fleet.Replicas {
		r.Revisions[Other] = 31
	}
	s.Fleet.Issuers = append(s.Fleet.Issuers, &signerv1.IssuerStatus{
		Issuer: Other, Algorithm: "RS256", TokenTtl: durationpb.New(3 * time.Minute), Enrolment: "closed", ScheduleRevision: 31,
		Devices: 9, Credentials: 3, Audiences: 2, Ready: true, SignerUrl: Other,
	})
	day := 24 * time.Hour
	for i, kid := range []string{"aaa1bYwQeRk4uPnXhD6vMjSg2LcAo9fHiK0sVtZxBqE", "bbb1bYwQeRk4uPnXhD6vMjSg2LcAo9fHiK0sVtZxBqE", "ccc1bYwQeRk4uPnXhD6vMjSg2LcAo9fHiK0sVtZxBqE"} {
		sign := now.Add(-time.Duration(6-2*i) * day)
		s.AddKey(Other, kid, "removed", sign.Add(-time.Hour), sign, sign.Add(2*day), sign.Add(2*day+time.Hour))
	}
	last := s.Keys[len(s.Keys)-1]
	last.State, last.RetireAt, last.RemoveAt = "retiring", stamp(now.Add(-20*time.Minute)), stamp(now.Add(40*time.Minute))
	last.ServedBy = []string{"pact-signer-7d9f-a", "pact-signer-7d9f-b", "pact-signer-7d9f-c"}
	s.AddKey(Other, "ddd1bYwQeRk4uPnXhD6vMjSg2LcAo9fHiK0sVtZxBqE", "signing", now.Add(-80*time.Minute), now.Add(-20*time.Minute), time.Time{}, time.Time{})
}

// Silence lets the last replica be silent, and one be gone.
func (s *Service) Silence() {
	now := s.Fleet.Time.AsTime()
	r := s.Fleet.Replicas[2]
	r.Seen, r.PermitUntil = stamp(now.Add(-7200*time.Millisecond)), stamp(now.Add(-4200*time.Millisecond))
	s.Activity.Replicas[2].Reported = stamp(now.Add(-9 * time.Second))
	s.Activity.Silent = append(s.Activity.Silent, &signerv1.ReplicaActivity{
		Replica: "pact-signer-64bb-x", Since: stamp(now.Add(-50 * time.Hour)), Reported: stamp(now.Add(-11 * time.Minute)),
	})
}

// Away is the error of a store that cannot be reached.
var Away = status.Error(codes.Unavailable, "the signer's store cannot answer now: try again; pactctl state status and the signer's log say more")

// StoreAway takes the store away.
func (s *Service) StoreAway() {
	for _, method := range []string{"FleetStatus", "KillStatus", "ListKeys", "GetActivity", "ListAudit"} {
		s.Fails[method] = Away
	}
	s.State = &signerv1.StoreState{
		Condition: "unknown", Kind: "redis", Store: "store-1", Problem: "store: dial tcp 10.0.4.17:6379: connect: connection refused",
		Remedy: "it goes on by itself once custody and the store answer; see /readyz and the signer's log",
	}
}
