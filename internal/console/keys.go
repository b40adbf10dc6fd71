package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// A revocation counts as news for this long.
const recently = 24 * time.Hour

func (v *fleetView) viewKeys(r *reading, known []Issuer) {
	if r.keys.err != nil {
		v.KeysWhy = r.keys.why()
		if r.kills.err == nil {
			v.tell(unknown, "Keys are not known: %s", lower(v.KeysWhy))
		}
	}
	urls := make([]string, 0, len(known))
	for _, i := range known {
		urls = append(urls, i.URL)
	}
	for _, k := range r.keys.value.GetKeys() {
		if !slices.Contains(urls, k.Issuer) {
			urls, known = append(urls, k.Issuer), append(slices.Clone(known), Issuer{URL: k.Issuer})
		}
	}
	for n, i := range known {
		iv := issuerView{URL: i.URL, Level: unknown, State: "Unknown", KeysWhy: v.KeysWhy}
		if r.keys.err == nil {
			var keys []*signerv1.Key
			for _, k := range r.keys.value.Keys {
				if k.Issuer == i.URL {
					keys = append(keys, k)
				}
			}
			iv = v.issuer(n, i, keys)
		}
		v.Issuers = append(v.Issuers, iv)
	}
}

// issuer says of one what its keys are, and what comes next.
func (v *fleetView) issuer(n int, i Issuer, keys []*signerv1.Key) issuerView {
	iv := issuerView{URL: i.URL, Level: calm, State: "Calm"}
	say := func(format string, args ...any) { iv.Now = append(iv.Now, fmt.Sprintf(format, args...)) }
	next := func(format string, args ...any) { iv.Next = append(iv.Next, fmt.Sprintf(format, args...)) }
	level := func(l string) {
		if worse(l, iv.Level) {
			iv.Level = l
		}
	}
	of := func(state string) (found []*signerv1.Key) {
		for _, k := range keys {
			if k.State == state {
				found = append(found, k)
			}
		}
		return found
	}
	signing, published, retiring := of("signing"), of("published"), of("retiring")

	for _, k := range signing {
		say("Key %s signs (%s), since %s.", shortKID(k.Kid), k.Algorithm, v.moment(timeOf(k.SignAt)))
	}
	if len(signing) == 0 {
		level(warn)
		iv.State = "No key signs"
		if !v.Switch.stops(i.URL) {
			v.mute++
		}
		say("No key signs: no token is issued for this issuer until one does.")
		v.tell(stopped, "No key of %s signs.", i.URL)
	}
	for _, k := range of("revoked") {
		if at := timeOf(k.RevokedAt); v.now.Sub(at) < recently {
			level(warn)
			iv.State = "Emergency: a key was revoked"
			say("Key %s was revoked at %s. It left the key set at once; a verifier that cached the key set before can accept its tokens until that copy expires.", shortKID(k.Kid), v.moment(at))
			v.tell(warn, "Key %s of %s was revoked %s.", shortKID(k.Kid), i.URL, away(at, v.now))
		}
	}
	for _, k := range published {
		signAt := timeOf(k.SignAt)
		serving := fmt.Sprintf("%d of %d", len(k.ServedBy), k.Replicas)
		if signAt.IsZero() {
			level(warn)
			iv.State = "A fresh key waits"
			say("Key %s is published and waits. Replicas that serve it: %s.", shortKID(k.Kid), serving)
			next("Key %s signs as soon as every replica serves it. One that says nothing is waited for about a minute.", shortKID(k.Kid))
			v.tell(warn, "%s: the fresh key %s waits to sign until every replica serves it: %s do.", i.URL, shortKID(k.Kid), serving)
			continue
		}
		level(info)
		if iv.State == "Calm" {
			iv.State = "Rotation in progress: the next key is published"
		}
		say("Rotation in progress: key %s is published, so that verifiers learn of it, and does not sign yet. Replicas that serve it: %s.", shortKID(k.Kid), serving)
		next("Key %s takes over%s at %s.", shortKID(k.Kid), fromWhom(signing), v.moment(signAt))
		v.tell(info, "%s: a rotation is in progress. Key %s takes over %s.", i.URL, shortKID(k.Kid), away(signAt, v.now))
		if len(k.ServedBy) < int(k.Replicas) {
			level(warn)
			iv.State = "Rotation in progress: not every replica serves the next key"
			next("If a replica still does not serve it then, the change is put off.")
			v.tell(warn, "%s: only %s replicas serve the next key. If that lasts, its turn is put off.", i.URL, serving)
		}
		if planned := timeOf(k.PublishAt).Add(i.Lead); i.Lead > 0 && signAt.Sub(planned) > time.Second {
			level(warn)
			iv.State = "Rotation in progress: postponed"
			say("Its turn was postponed by %s: it was planned for %s. A replica had not confirmed that it serves the key.", span(signAt.Sub(planned)), v.moment(planned))
			v.tell(warn, "%s: the rotation is postponed by %s, because a replica did not serve the next key.", i.URL, span(signAt.Sub(planned)))
		}
	}
	for _, k := range retiring {
		level(info)
		if iv.State == "Calm" {
			iv.State = "Rotation in progress: the old key is retiring"
		}
		say("Rotation in progress: key %s signs no more, since %s, and stays published so that its last tokens can be verified.", shortKID(k.Kid), v.moment(timeOf(k.RetireAt)))
		if remove := timeOf(k.RemoveAt); !remove.IsZero() {
			next("Key %s leaves the key set at %s.", shortKID(k.Kid), v.moment(remove))
			v.tell(info, "%s: a rotation ends %s, when the old key %s leaves the key set.", i.URL, away(remove, v.now), shortKID(k.Kid))
		}
	}
	for _, k := range of("pending") {
		next("Key %s is published at %s.", shortKID(k.Kid), v.moment(timeOf(k.PublishAt)))
	}
	if len(published) == 0 && len(signing) > 0 {
		v.planned(&iv, i, signing[len(signing)-1])
	}
	if len(keys) > 0 {
		v.draw(&iv, n, keys)
	}
	iv.Keys = v.keyTable(i.URL, keys)
	switch {
	case v.Switch.Why != "":
		level(unknown)
		iv.State = "Not known whether it is stopped"
	case v.Switch.stops(i.URL):
		level(stopped)
		if iv.State == "Calm" {
			iv.State = "Stopped by the kill switch"
		} else {
			iv.State = "Stopped by the kill switch. " + iv.State
		}
		iv.Now = append([]string{"The kill switch stops this issuer: no token is issued, whatever its keys are."}, iv.Now...)
	}
	return iv
}

// planned says when the next key comes if none is on its way.
func (v *fleetView) planned(iv *issuerView, i Issuer, signing *signerv1.Key) {
	if i.Period == 0 {
		iv.Next = append(iv.Next, "Nothing is planned after that: a rotation begins when somebody asks for it (pactctl rotate).")
		if len(iv.Next) == 1 {
			iv.Next[0] = "Nothing is planned: a rotation begins when somebody asks for it (pactctl rotate)."
		}
		return
	}
	signAt := timeOf(signing.SignAt).Add(i.Period)
	publish := signAt.Add(-i.Lead)
	if v.now.Sub(publish) > overdue {
		if worse(warn, iv.Level) {
			iv.Level = warn
		}
		iv.State = "Rotation overdue"
		iv.Next = append(iv.Next, fmt.Sprintf("The next key was due to be published at %s and is not. The signer’s log says what hinders it.", v.moment(publish)))
		v.tell(warn, "%s: a rotation is overdue. The next key should have been published %s.", i.URL, away(publish, v.now))
		return
	}
	iv.Next = append(iv.Next, fmt.Sprintf("The next key is published at %s, and signs from %s: every %s.", v.moment(publish), v.moment(signAt), span(i.Period)))
}

// overdue is how late the next key may be without that being told.
const overdue = time.Minute

func fromWhom(signing []*signerv1.Key) string {
	if len(signing) == 0 {
		return ""
	}
	return " from " + shortKID(signing[0].Kid)
}

func (v *fleetView) draw(iv *issuerView, n int, keys []*signerv1.Key) {
	t := newTimeline(keys, v.now)
	iv.Hidden = t.hidden
	if len(t.lanes) == 0 {
		return
	}
	title := "Keys of " + iv.URL + " over time"
	desc := strings.Join(append(slices.Clone(iv.Now), iv.Next...), " ")
	iv.Pictures = []*picture{t.wide(fmt.Sprintf("keys-%d-wide", n), title, desc), t.narrow(fmt.Sprintf("keys-%d-narrow", n), title, desc)}
}

func (v *fleetView) keyTable(issuer string, keys []*signerv1.Key) *table {
	t := &table{Caption: "Keys of " + issuer, Head: []string{"Key", "State", "Published", "Signs from", "Signs until", "Leaves key set", "Served by"}}
	for _, k := range slices.Backward(keys) {
		state := cell{Text: stateWord(k.State), Whole: true}
		if k.State == "revoked" {
			state.Level = warn
		}
		served := cell{Text: "–"}
		switch k.State {
		case "published", "signing", "retiring":
			served.Text = fmt.Sprintf("%d of %d", len(k.ServedBy), k.Replicas)
			if len(k.ServedBy) < int(k.Replicas) {
				served.Level = warn
			}
		}
		leaves, until := at(v.moment(timeOf(k.RemoveAt)), "not planned"), at(v.moment(timeOf(k.RetireAt)), "not planned")
		signs := at(v.moment(timeOf(k.SignAt)), "when all serve it")
		if revoked := timeOf(k.RevokedAt); !revoked.IsZero() {
			leaves = at(v.moment(revoked), "")
			if sign := timeOf(k.SignAt); sign.IsZero() || !sign.Before(revoked) {
				signs, until = text("never"), text("never")
			}
		}
		t.row(cell{Text: k.Kid, More: k.Algorithm, Code: true}, state, at(v.moment(timeOf(k.PublishAt)), "not planned"), signs, until, leaves, served)
	}
	return t
}

func stateWord(state string) string {
	if state == "signing" {
		return "signs"
	}
	return state
}
