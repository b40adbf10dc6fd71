package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

var signinChecks = []check{
	{Check{ID: "signin-pages", Requirement: "plain forms lead from the link to consent", Source: fromDelegation + ", step 2"}, checkSigninPages},
	{Check{ID: "signin-assertion", Requirement: "what a login hands over works once", Source: fromDelegation + ", step 2"}, checkSigninAssertion},
	{Check{ID: "signin-session", Requirement: "a consent page is answered once", Source: fromDelegation + ", step 2"}, checkSigninSession},
	{Check{ID: "signin-wrong-password", Requirement: "a wrong password leads to no consent page", Source: fromDelegation + ", step 2"}, checkSigninWrongPassword},
	{Check{ID: "signin-extra-scope", Requirement: "a scope that was not asked for is not granted", Source: fromDelegation + ", step 2"}, checkSigninExtraScope},
}

// asking starts a sign-in for the scopes, all of the card's if none are given, which
// somebody can decide.
func (r *run) asking(ctx context.Context, scopes ...string) (*card, *device, error) {
	c, p, err := r.agent(ctx)
	if err != nil {
		return nil, nil, err
	}
	if r.cfg.Login.Email == "" {
		return nil, nil, notRun("nobody can sign in: no login was given")
	}
	if scopes == nil {
		scopes = c.scopeIDs()
	}
	d, err := r.startDevice(ctx, c, p, scopes...)
	if err != nil {
		return nil, nil, lacking("no sign-in could be started", err)
	}
	return c, d, nil
}

// signedIn is asking, and goes on to the consent page.
func (r *run) signedIn(ctx context.Context, scopes ...string) (*card, *device, *person.Page, error) {
	c, d, err := r.asking(ctx, scopes...)
	if err != nil {
		return nil, nil, nil, err
	}
	page, err := r.consentPage(ctx, d, r.cfg.Login)
	if err != nil {
		return nil, nil, nil, lacking("the pages do not lead to consent", err)
	}
	return c, d, page, nil
}

// press presses a button of a consent page, whatever page follows.
func (r *run) press(ctx context.Context, page *person.Page, decision string, scopes ...string) error {
	_, err := page.Answer(ctx, decision, scopes...)
	return lacking("the consent page could not be answered", r.pageError(ctx, err))
}

func checkSigninPages(ctx context.Context, r *run) error {
	r.pagesSilent = 0 // it is about just that
	var f findings
	for _, decision := range []string{"allow", "deny"} {
		c, d, err := r.asking(ctx)
		if err != nil {
			return err
		}
		f.add(decision, r.walk(ctx, c, d, decision))
	}
	return f.err()
}

// walk goes from the link to the last page and looks at what it is asked on the way.
func (r *run) walk(ctx context.Context, c *card, d *device, decision string) error {
	page, err := r.consentPage(ctx, d, r.cfg.Login)
	if err != nil {
		return err
	}
	if err := judgeBoxes(page.Boxes, c.scopeIDs()); err != nil {
		return err
	}
	var ticked []string
	if decision == "allow" {
		ticked = c.scopeIDs()
	}
	last, err := page.Answer(ctx, decision, ticked...)
	if err = r.pageError(ctx, err); err != nil {
		return err
	}
	if last.Status >= http.StatusBadRequest {
		return fmt.Errorf("the answer to the consent page is %s", last)
	}
	return nil
}

// judgeBoxes holds a consent page to what was asked for.
func judgeBoxes(boxes []person.Box, asked []string) error {
	ids := make([]string, len(boxes))
	for i, box := range boxes {
		ids[i] = box.ID
	}
	var f findings
	if missing := beyond(asked, ids); len(missing) > 0 {
		f.add("", fmt.Errorf("the consent page has no box for %s, which was asked for", listed(missing)))
	}
	if extra := beyond(ids, asked); len(extra) > 0 {
		f.add("", fmt.Errorf("the consent page has a box for %s, which was not asked for", listed(extra)))
	}
	return f.err()
}

func checkSigninAssertion(ctx context.Context, r *run) error {
	_, d, err := r.asking(ctx)
	if err != nil {
		return err
	}
	link, err := r.link(d)
	if err != nil {
		return err
	}
	back, err := r.user(r.cfg.Login, d.UserCode).LogIn(ctx, link)
	if err = r.pageError(ctx, err); err != nil {
		return lacking("nobody could sign in", err)
	}
	if back.Values.Get("assertion") == "" {
		return notRun("the page after the login has no form with an assertion")
	}
	first, err := back.Post(ctx, back.Values)
	if err = r.pageError(ctx, err); err != nil {
		return lacking("the assertion could not be sent", err)
	}
	if first.Action == "" || first.Status >= http.StatusBadRequest {
		return notRun("the assertion leads to no page to go on with, but to %s", first)
	}
	again, err := back.Post(ctx, back.Values)
	if err = r.pageError(ctx, err); err != nil {
		return err
	}
	if alike(first, again) {
		return fmt.Errorf("an assertion that was used already leads to %s again: must work once", again)
	}
	return nil
}

// alike tells whether two pages ask the same of the user.
func alike(a, b *person.Page) bool {
	return a.Heading == b.Heading && a.Action == b.Action && len(a.Boxes) == len(b.Boxes) &&
		slices.Equal(slices.Sorted(maps.Keys(a.Values)), slices.Sorted(maps.Keys(b.Values)))
}

func checkSigninSession(ctx context.Context, r *run) error {
	c, d, page, err := r.signedIn(ctx)
	if err != nil {
		return err
	}
	if err := r.press(ctx, page, "deny"); err != nil {
		return err
	}
	// The same page again, as after the back button.
	if err := r.press(ctx, page, "allow", c.scopeIDs()...); err != nil {
		return err
	}
	a, err := r.collectOnce(ctx, c, d)
	if err != nil {
		return lacking("no poll was answered", err)
	}
	if a.status == http.StatusOK {
		return errors.New("a consent page that was answered with deny was answered again with allow, and tokens came: must count once")
	}
	return nil
}

func checkSigninWrongPassword(ctx context.Context, r *run) error {
	_, d, err := r.asking(ctx)
	if err != nil {
		return err
	}
	link, err := r.link(d)
	if err != nil {
		return err
	}
	wrong := r.cfg.Login
	wrong.Password = "not-" + newID()
	page, err := r.user(wrong, d.UserCode).Open(ctx, link)
	if err = r.pageError(ctx, err); err != nil {
		return lacking("nobody could sign in", err)
	}
	if !page.AsksPassword() {
		return notRun("there is no login behind the link, but %s", page)
	}
	_, err = r.signIn(ctx, link, d.UserCode, wrong)
	switch {
	case err == nil:
		return errors.New("a wrong password leads to the consent page: must not sign in")
	case errors.Is(err, person.ErrRefused):
		return notRun("nobody could sign in: %v", err)
	case errors.Is(err, person.ErrPage):
		return nil
	default:
		return lacking("nobody could sign in", err)
	}
}

func checkSigninExtraScope(ctx context.Context, r *run) error {
	c, err := r.delegated(ctx)
	if err != nil {
		return err
	}
	ids := c.scopeIDs()
	asked, extra := ids[:1], noScope
	if len(ids) > 1 {
		extra = ids[len(ids)-1]
	}
	_, d, page, err := r.signedIn(ctx, asked...)
	if err != nil {
		return err
	}
	if err := r.press(ctx, page, "allow", asked[0], extra); err != nil {
		return err
	}
	a, err := r.collectOnce(ctx, c, d)
	if err != nil || a.status != http.StatusOK {
		return lacking("no poll was answered", err) // or all is refused: nothing was granted
	}
	var t tokens
	if err := a.object(&t); err != nil {
		return err
	}
	if got := beyond(scopeSet(t.Scope), asked); len(got) > 0 {
		return fmt.Errorf("the consent page was asked for %s, and %s was posted beside it: %s was granted too", asked[0], extra, listed(got))
	}
	return nil
}
