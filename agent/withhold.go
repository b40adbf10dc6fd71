package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// minWithheld is the length from which a sign-in's code is looked for in what a
// business says: a shorter one would be found in any text.
const minWithheld = 4

// withhold takes the links and codes of the principal's pending sign-ins out of what
// a business answers, before anything keeps or shows it. The business knows them,
// and a model that reads its words must not (DA-15).
func (a *Agent) withhold(reply *Reply, principal string) {
	hide := a.withheld(principal)
	m, s := &reply.Message, &reply.StepUp
	for _, text := range []*string{&m.Text, &m.MessageID, &s.Text, &s.TaskID, &reply.ErrorText, &reply.ErrorReason} {
		*text = hide(*text)
	}
	s.MissingScopes = slices.Clone(s.MissingScopes)
	for i := range s.MissingScopes {
		s.MissingScopes[i] = hide(s.MissingScopes[i])
	}
	for _, id := range []*string{&m.ContextID, &s.ContextID} { // one that is changed is none (CV-7)
		if *id != hide(*id) {
			*id = ""
		}
	}
}

// withholdClaims does the same to what is shown of a receipt.
func (a *Agent) withholdClaims(tx Tx, principal string, s *receiptSecret) error {
	secrets, err := a.signInSecrets(tx, principal)
	if err != nil {
		return err
	}
	s.Actions, s.ScopesUsed, s.Problems = slices.Clone(s.Actions), slices.Clone(s.ScopesUsed), slices.Clone(s.Problems)
	for i := range s.Actions {
		s.Actions[i] = Action{hideAll(secrets, s.Actions[i].Tool), hideAll(secrets, s.Actions[i].ArgsHash)}
	}
	for i := range s.ScopesUsed {
		s.ScopesUsed[i] = hideAll(secrets, s.ScopesUsed[i])
	}
	for i := range s.Problems {
		s.Problems[i].Detail = hideAll(secrets, s.Problems[i].Detail)
	}
	return nil
}

func hideAll(secrets []string, text string) string {
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, Redacted)
	}
	return text
}

// withheld returns what replaces each of those links and codes in a text. If they
// cannot be read, it replaces every text.
func (a *Agent) withheld(principal string) func(string) string {
	var secrets []string
	err := a.store.View(context.Background(), func(tx Tx) (err error) {
		secrets, err = a.signInSecrets(tx, principal)
		return err
	})
	return func(text string) string {
		if err != nil && text != "" {
			return Redacted
		}
		return hideAll(secrets, text)
	}
}

// signInSecrets are the links and codes of a principal's pending sign-ins, the
// longest first.
func (a *Agent) signInSecrets(tx Tx, principal string) (secrets []string, err error) {
	pending, err := find[authorization](tx, Query{Principal: principal, States: []string{authorizationPending}})
	if err != nil {
		return nil, err
	}
	for _, z := range pending {
		var s authorizationSecret
		if err := a.box.get(tx, z.ID, authorizationPurpose(z), &s); errors.Is(err, errSecretLost) {
			continue
		} else if err != nil {
			return nil, err
		}
		for _, secret := range []string{s.VerificationURIComplete, s.VerificationURI, s.DeviceCode, s.UserCode} {
			if len(secret) >= minWithheld {
				secrets = append(secrets, secret)
			}
		}
	}
	slices.SortFunc(secrets, func(x, y string) int { return len(y) - len(x) })
	return slices.Compact(secrets), nil
}
