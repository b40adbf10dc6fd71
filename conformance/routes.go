package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/go-json-experiment/json/jsontext"
)

var routeChecks = []check{
	{Check{ID: "route-unknown", Requirement: "an unknown route is 404 before authentication", Source: fromCard}, checkRouteUnknown},
	{Check{ID: "route-method", Requirement: "another method is 404 or 405, also before that", Source: fromCard}, checkRouteMethod},
	{Check{ID: "route-auth-first", Requirement: "a known route without a token is 401 before all", Source: fromCard}, checkRouteAuthFirst},
	{Check{ID: "route-unknown-brand", Requirement: "an unknown brand is 404 with a good token", Source: fromCard}, checkRouteUnknownBrand},
	{Check{ID: "route-tasks", Requirement: "GET tasks is an empty list, of 50 a page", Source: fromCard}, checkRouteTasks},
	{Check{ID: "route-page-size", Requirement: "pageSize is 1 to 100, given once", Source: fromCard}, checkRoutePageSize},
	{Check{ID: "route-query", Requirement: "other parameters of GET tasks are ignored", Source: fromMessages}, checkRouteQuery},
	{Check{ID: "route-task", Requirement: "there is no task to get or cancel", Source: fromCard}, checkRouteTask},
	{Check{ID: "route-unsupported", Requirement: "streams and the extended card are not supported", Source: fromCard}, checkRouteUnsupported},
	{Check{ID: "route-push", Requirement: "push notifications are not supported", Source: fromCard}, checkRoutePush},
	{Check{ID: "route-headers", Requirement: "any or no A2A-Version and Content-Type is taken", Source: fromCard}, checkRouteHeaders},
	{Check{ID: "route-type", Requirement: "A2A answers are application/a2a+json", Source: fromCard}, checkRouteType},
}

// route is a method on a path below the interface URL.
type route struct{ method, path string }

// noTask is a task that there never was.
const noTask = "no-such-task"

var (
	routeSend   = route{http.MethodPost, "message:send"}
	routesTask  = []route{{http.MethodGet, "tasks/" + noTask}, {http.MethodPost, "tasks/" + noTask + ":cancel"}}
	routesNever = []route{{http.MethodPost, "tasks/" + noTask + ":subscribe"}, {http.MethodPost, "message:stream"}, {http.MethodGet, "extendedAgentCard"}}
	routesPush  = []route{
		{http.MethodGet, "tasks/" + noTask + "/pushNotificationConfigs"},
		{http.MethodPost, "tasks/" + noTask + "/pushNotificationConfigs"},
		{http.MethodGet, "tasks/" + noTask + "/pushNotificationConfigs/1"},
		{http.MethodDelete, "tasks/" + noTask + "/pushNotificationConfigs/1"},
	}
)

// knownRoutes are all that need a PA-JWT.
func knownRoutes() []route {
	all := []route{routeSend, {http.MethodGet, "tasks"}}
	all = append(all, routesTask...)
	all = append(all, routesNever...)
	return append(all, routesPush...)
}

// ask asks a route below an interface URL; a POST has that body.
func (r *run) ask(ctx context.Context, interfaceURL string, to route, token, body string) (*answer, error) {
	c := call{method: to.method, url: interfaceURL + "/" + to.path, token: token}
	if to.method == http.MethodPost {
		c.contentType, c.body = "application/json", []byte(body)
	}
	return r.do(ctx, c)
}

// anonymously asks routes without a token, which must be 404 or 405 and no A2A error.
func (r *run) anonymously(ctx context.Context, routes []route) error {
	c, err := r.identity(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, to := range routes {
		a, err := r.ask(ctx, c.interfaceURL, to, "", "{}")
		if err == nil {
			err = a.wants(http.StatusNotFound, http.StatusMethodNotAllowed)
		}
		if err == nil {
			err = a.noA2A()
		}
		f.add("", err)
	}
	return f.err()
}

func checkRouteUnknown(ctx context.Context, r *run) error {
	return r.anonymously(ctx, []route{
		{http.MethodGet, "nothing"}, {http.MethodPost, "message:nothing"}, {http.MethodGet, "tasks/" + noTask + "/nothing"},
	})
}

func checkRouteMethod(ctx context.Context, r *run) error {
	return r.anonymously(ctx, []route{
		{http.MethodGet, "message:send"}, {http.MethodDelete, "tasks"}, {http.MethodPut, "tasks/" + noTask}, {http.MethodPost, "extendedAgentCard"},
	})
}

func checkRouteAuthFirst(ctx context.Context, r *run) error {
	c, _, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	var f findings
	each := func(what, interfaceURL string) {
		for _, to := range knownRoutes() {
			a, err := r.ask(ctx, interfaceURL, to, "", "{")
			if err == nil {
				err = a.unauthorized()
			}
			f.add(what, err)
		}
	}
	each("", c.interfaceURL)
	if nowhere, err := c.unknownBrand(); err == nil {
		each("an unknown brand", nowhere)
	}
	return f.err()
}

func checkRouteUnknownBrand(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	nowhere, err := c.unknownBrand()
	if err != nil {
		return err
	}
	var f findings
	for _, to := range []route{{http.MethodGet, "tasks"}, routeSend} {
		a, err := r.ask(ctx, nowhere, to, r.token(i), goodMessage())
		if err == nil {
			err = a.wants(http.StatusNotFound)
		}
		if err == nil {
			err = a.noA2A()
		}
		f.add("", err)
	}
	return f.err()
}

// taskList is the answer to GET tasks.
type taskList struct {
	Tasks    *[]jsontext.Value `json:"tasks"`
	Next     *string           `json:"nextPageToken"`
	PageSize *int              `json:"pageSize"`
	Total    *int              `json:"totalSize"`
}

// list asks GET tasks with a query and decodes what must be 200.
func (r *run) list(ctx context.Context, query string) (taskList, error) {
	var list taskList
	a, err := r.query(ctx, query)
	if err != nil {
		return list, err
	}
	if err := a.wants(http.StatusOK); err != nil {
		return list, err
	}
	return list, a.object(&list)
}

func (r *run) query(ctx context.Context, query string) (*answer, error) {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return nil, err
	}
	return r.do(ctx, call{method: http.MethodGet, url: c.interfaceURL + "/tasks" + query, token: r.token(i)})
}

func checkRouteTasks(ctx context.Context, r *run) error {
	l, err := r.list(ctx, "")
	if err != nil {
		return err
	}
	var f findings
	has := func(what string, ok bool) {
		if !ok {
			f.add("", fmt.Errorf("GET tasks: must have %s", what))
		}
	}
	has(`"tasks": []`, l.Tasks != nil && len(*l.Tasks) == 0)
	has(`"nextPageToken": ""`, l.Next != nil && *l.Next == "")
	has(`"pageSize": 50`, l.PageSize != nil && *l.PageSize == 50)
	has(`"totalSize": 0`, l.Total != nil && *l.Total == 0)
	return f.err()
}

func checkRoutePageSize(ctx context.Context, r *run) error {
	var f findings
	for _, size := range []int{1, 100} {
		l, err := r.list(ctx, fmt.Sprintf("?pageSize=%d", size))
		if err == nil && (l.PageSize == nil || *l.PageSize != size) {
			err = fmt.Errorf("GET tasks: the answer has another pageSize")
		}
		f.add(fmt.Sprintf("pageSize=%d", size), err)
	}
	for _, bad := range []string{"pageSize=0", "pageSize=101", "pageSize=-1", "pageSize=abc", "pageSize=10abc", "pageSize=1e1", "pageSize=10&pageSize=20"} {
		a, err := r.query(ctx, "?"+bad)
		if err == nil {
			err = a.refuses(invalidParams)
		}
		f.add(bad, err)
	}
	const unread = "pageSize=%zz" // what is no query at all may be refused earlier
	a, err := r.query(ctx, "?"+unread)
	if err == nil {
		err = a.wants(http.StatusBadRequest)
	}
	f.add(unread, err)
	return f.err()
}

func checkRouteQuery(ctx context.Context, r *run) error {
	query := url.Values{"contextId": {newUUID()}, "historyLength": {"5"}, "anything": {"", "else"}}
	_, err := r.list(ctx, "?"+query.Encode())
	return err
}

// refusedRoutes asks routes that must be refused for that reason.
func (r *run) refusedRoutes(ctx context.Context, routes []route, reason string) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	var f findings
	for _, to := range routes {
		a, err := r.ask(ctx, c.interfaceURL, to, r.token(i), goodMessage())
		if err == nil {
			err = a.refuses(reason)
		}
		f.add("", err)
	}
	return f.err()
}

func checkRouteTask(ctx context.Context, r *run) error {
	return r.refusedRoutes(ctx, routesTask, taskNotFound)
}

func checkRouteUnsupported(ctx context.Context, r *run) error {
	return r.refusedRoutes(ctx, routesNever, unsupported)
}

func checkRoutePush(ctx context.Context, r *run) error {
	return r.refusedRoutes(ctx, routesPush, noPush)
}

func checkRouteHeaders(ctx context.Context, r *run) error {
	c, i, err := r.authenticated(ctx)
	if err != nil {
		return err
	}
	var delegation string
	if r.answers(ctx, c) == nil { // it may mind just the headers of that
		if delegation, err = r.converses(ctx, c); err != nil {
			return err
		}
	}
	greet := func(contentType string, version ...string) error {
		a, err := r.do(ctx, call{
			method: http.MethodPost, url: c.interfaceURL + "/message:send", token: r.token(i), delegation: delegation,
			contentType: contentType, header: http.Header{"A2a-Version": version}, body: []byte(goodMessage()),
		})
		if err != nil {
			return err
		}
		return a.wants(http.StatusOK)
	}
	if greet(typeA2A, "1.0") != nil {
		return notRun("the brand does not answer a greeting: see message-reply")
	}
	var f findings
	f.add("Content-Type application/json", greet("application/json", "1.0"))
	f.add("A2A-Version 0.3", greet(typeA2A, "0.3"))
	f.add("A2A-Version 9.9 and Content-Type text/plain", greet("text/plain", "9.9"))
	f.add("neither A2A-Version nor Content-Type", greet(""))
	return f.err()
}

func checkRouteType(ctx context.Context, r *run) error {
	c, i, err := r.talks(ctx)
	if err != nil {
		return err
	}
	delegation, err := r.converses(ctx, c)
	if err != nil {
		return err
	}
	var f findings
	typed := func(status int, a *answer, err error) {
		if err == nil {
			err = a.wants(status)
		}
		if err == nil && a.mediaType() != typeA2A {
			err = fmt.Errorf("%s: %d of type %q: must be %s", a.asked, a.status, clip(a.mediaType()), typeA2A)
		}
		f.add("", err)
	}
	a, err := r.tasks(ctx, c, r.token(i))
	typed(http.StatusOK, a, err)
	a, err = r.send(ctx, c, say{text: greeting, delegation: delegation})
	typed(http.StatusOK, a, err)
	a, err = r.send(ctx, c, say{text: " "})
	typed(http.StatusBadRequest, a, err)
	a, err = r.ask(ctx, c.interfaceURL, routesTask[0], r.token(i), "")
	typed(http.StatusNotFound, a, err)
	return f.err()
}
