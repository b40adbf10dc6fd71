package probe

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusal is a check that something is refused.
type refusal struct {
	name string
	run  func(context.Context) verdict
}

// refusals are the negative checks for this caller.
func (r *round) refusals() []refusal {
	list := []refusal{
		{CheckUnregistered, r.unregistered},
		{CheckCredential, r.unknownCredential},
		{CheckMember, r.unknownMember},
	}
	if r.cfg.KilledAudience != "" {
		list = append(list, refusal{CheckKilled, r.killed})
	}
	device := []refusal{
		{CheckReplayed, r.replayed},
		{CheckEndpoint, r.wrongEndpoint},
		{CheckAlgNone, r.algNone},
		{CheckExpired, r.expired},
		{CheckTampered, r.tampered},
	}
	if r.cfg.Device == nil {
		for i := range device {
			device[i].run = func(context.Context) verdict { return leftOut("a credential has no assertions") }
		}
	}
	return append(list, device...)
}

// remedyBreach: something was accepted that must never be.
const remedyBreach = "This must never be accepted. Stop issuing (pactctl kill), keep the logs, find out what answered."

// must judges an answer that has to be one refusal.
func must(status int, a answer, err error, what string) verdict {
	switch {
	case err != nil:
		return failed(remedyReach, "%v", err)
	case a.refused(status):
		return passed("%v", a)
	case a.status == http.StatusOK && a.isJSON():
		return failed(remedyBreach, "%s was accepted; it must be answered %d %s", what, status, words[status])
	}
	return failed("Is it the signer that answers, and is it well?", "%s was answered %v; it must be %d %s", what, a, status, words[status])
}

// useless says why a refusal would tell nothing: the caller itself is refused.
func (r *round) useless() (verdict, bool) {
	switch {
	case r.unknown != "":
		return leftOut("%s", r.unknown), true
	case r.unwell != "":
		return leftOut("%s", r.unwell), true
	case r.covered:
		return leftOut("the kill switch covers this caller: it is refused anyhow"), true
	}
	return verdict{}, false
}

// unregistered asks for a token for an audience that nobody can have registered.
func (r *round) unregistered(ctx context.Context) verdict {
	if v, ok := r.useless(); ok {
		return v
	}
	a, err := r.call(ctx, pathSign, signRequest{"urn:pact:probe-unregistered:" + rand.Text(), rand.Text()})
	return must(422, a, err, "an audience that is not registered")
}

// killed asks for a token for the audience that an operator has killed for good.
func (r *round) killed(ctx context.Context) verdict {
	if v, ok := r.useless(); ok {
		return v
	}
	a, err := r.call(ctx, pathSign, signRequest{r.cfg.KilledAudience, rand.Text()})
	v := must(403, a, err, "the killed audience "+r.cfg.KilledAudience)
	switch {
	case v.outcome == Failed && err == nil && a.refused(http.StatusUnprocessableEntity):
		v.remedy = remedySetup
	case v.outcome == Failed && err == nil && a.status == http.StatusOK:
		v.remedy = "Is the probe's kill still in force (pactctl kill status)? If it was lifted, with others perhaps: pactctl probe setup. " +
			"If it is in force, the kill switch does not work: take the replicas down."
	case v.outcome == Passed && slices.Contains(r.listed, r.cfg.KilledAudience):
		return failed("Does every replica know of the kill? See pactctl kill status and pactctl fleet status.", "sign refuses the killed audience, but status lists it")
	}
	return v
}

// unknownMember sends a request that names a subject.
func (r *round) unknownMember(ctx context.Context) verdict {
	if v, ok := r.useless(); ok && !r.covered { // it is malformed before it is refused
		return v
	}
	a, err := r.call(ctx, pathSign, map[string]string{"audience": r.cfg.Audience, "nonce": rand.Text(), "sub": "pa_probe"})
	return must(400, a, err, "a request with the member sub")
}

// unknownCredential calls with a credential that never was.
func (r *round) unknownCredential(ctx context.Context) verdict {
	if v, ok := r.useless(); ok {
		return v
	}
	a, err := r.post(ctx, r.way, pathSign, "Bearer "+rand.Text(), signRequest{r.cfg.Audience, rand.Text()})
	return must(401, a, err, "a credential that never was")
}

// replayed sends the sign that was answered once more, and to every replica.
func (r *round) replayed(ctx context.Context) verdict {
	if v, ok := r.useless(); ok {
		return v
	}
	if r.proof == "" {
		return leftOut("no assertion was accepted that could be used again")
	}
	a, err := r.post(ctx, r.way, pathSign, r.proof, r.request)
	v := must(401, a, err, "a used assertion")
	if v.outcome != Passed {
		return v
	}
	var mu sync.Mutex
	// What does not resolve is told by jwks_replicas, and so is who does not answer.
	_ = r.everyReplica(ctx, func(address string, w *way) {
		a, err := r.post(ctx, w, pathSign, r.proof, r.request)
		if err != nil || a.refused(http.StatusServiceUnavailable) {
			return
		}
		if one := must(401, a, err, "a used assertion, at "+address+","); one.outcome != Passed {
			mu.Lock()
			defer mu.Unlock()
			v = one
		}
	})
	return v
}

// wrongEndpoint uses an assertion for status at sign.
func (r *round) wrongEndpoint(ctx context.Context) verdict {
	return r.forged(ctx, "an assertion for /pact/status at /pact/sign", func() ([]string, error) {
		a, err := r.cfg.Device.assertion(r.cfg.Signer+pathStatus, r.cfg.Now(), "ES256")
		return []string{a}, err
	})
}

// algNone uses assertions that say they need no signature: without one, and with
// something in its place.
func (r *round) algNone(ctx context.Context) verdict {
	return r.forged(ctx, "an assertion with alg none", func() ([]string, error) {
		a, err := r.cfg.Device.assertion(r.cfg.Signer+pathSign, r.cfg.Now(), "none")
		return []string{a, a + b64(make([]byte, 64))}, err
	})
}

// longExpired is how old an expired assertion is: more than any clock may be off.
const longExpired = 10 * time.Minute

func (r *round) expired(ctx context.Context) verdict {
	return r.forged(ctx, "an expired assertion", func() ([]string, error) {
		a, err := r.cfg.Device.assertion(r.cfg.Signer+pathSign, r.cfg.Now().Add(-longExpired), "ES256")
		return []string{a}, err
	})
}

// tampered uses an assertion with one character of the signature changed, and one
// with the claims of another under its signature.
func (r *round) tampered(ctx context.Context) verdict {
	return r.forged(ctx, "an assertion that was tampered with", func() ([]string, error) {
		a, err := r.cfg.Device.assertion(r.cfg.Signer+pathSign, r.cfg.Now(), "ES256")
		if err != nil {
			return nil, err
		}
		b, err := r.cfg.Device.assertion(r.cfg.Signer+pathSign, r.cfg.Now(), "ES256")
		if err != nil {
			return nil, err
		}
		end := strings.LastIndexByte(a, '.') + 1
		other := "A"
		if a[end] == 'A' {
			other = "B"
		}
		return []string{a[:end] + other + a[end+1:], a[:end] + b[strings.LastIndexByte(b, '.')+1:]}, nil
	})
}

// forged sends signs with assertions that must not be accepted.
func (r *round) forged(ctx context.Context, what string, make func() ([]string, error)) verdict {
	if v, ok := r.useless(); ok {
		return v
	}
	assertions, err := make()
	if err != nil {
		return failed("", "%v", err)
	}
	var v verdict
	for _, assertion := range assertions {
		a, err := r.post(ctx, r.way, pathSign, deviceScheme+assertion, signRequest{r.cfg.Audience, rand.Text()})
		if v = must(401, a, err, what); v.outcome != Passed {
			return v
		}
	}
	return v
}
