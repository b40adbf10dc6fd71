package assistant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
)

// withholder is an agent that takes what belongs to the principal's pending sign-ins out
// of a text of a business (its id; empty: nobody knows whose). What a running agent answers
// to a task went through that there.
type withholder interface {
	Withholder(context.Context, agent.Caller) (func(business, text string) string, error)
}

func (s *Server) withholder(ctx context.Context) (func(business, text string) string, error) {
	if a, ok := s.cfg.Agent.(withholder); ok {
		return a.Withholder(ctx, s.caller(nil, ""))
	}
	return func(_, text string) string { return text }, nil
}

// filter is the last thing that sees a result before the assistant does: what belongs
// to a sign-in that waits now is taken out, wherever it comes from, and what looks like a
// secret. If that cannot be done, there is no result.
func (s *Server) filter(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		hide, failed := func(_, text string) string { return text }, error(nil)
		switch method {
		case "tools/call", "resources/list", "resources/read": // the others tell of this server alone
			hide, failed = s.withholder(context.WithoutCancel(ctx))
		}
		if failed != nil {
			s.cfg.Log.Error("nothing can be told, for it is not known what is secret", "error", failed)
			return nil, errors.New("the agent cannot tell anything now. What was called for may have been taken up: do not repeat it, call follow_up or list_approvals later")
		}
		c := cleaner(hide)
		if err != nil {
			if clean := c.text("", err.Error()); clean != err.Error() {
				return nil, errors.New(clean)
			}
			return nil, err
		}
		switch r := res.(type) {
		case *mcp.CallToolResult:
			if r.StructuredContent != nil {
				data, err := c.json(r.StructuredContent)
				if err != nil {
					return nil, err
				}
				r.StructuredContent = data
				r.Content = []mcp.Content{&mcp.TextContent{Text: string(data)}}
				break
			}
			for i, content := range r.Content {
				t, ok := content.(*mcp.TextContent)
				if !ok {
					return nil, fmt.Errorf("a result of %T, which no tool makes", content)
				}
				r.Content[i] = &mcp.TextContent{Text: c.text("", t.Text)}
			}
		case *mcp.ListResourcesResult:
			for _, l := range r.Resources {
				l.Name, l.Description, l.URI = own.text("", l.Name), own.text("", l.Description), own.text("", l.URI)
			}
		case *mcp.ReadResourceResult:
			for _, content := range r.Contents {
				data, err := c.json(json.RawMessage(content.Text))
				if err != nil {
					return nil, err
				}
				content.Text = string(data)
			}
		}
		return res, nil
	}
}

// signInLink is a link that a person signs in by: all of it goes, not its code alone.
var signInLink = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>]*(?:user|device)_?code[^\s"'<>]*`)

// cleaner cleans results of what hide knows, and of what looks like a secret.
type cleaner func(business, text string) string

func (hide cleaner) text(business, s string) string { return agent.RedactText(hide.known(business, s)) }

// known is text without what nobody sees, for a secret must not hide behind that, and
// without what is known to be one.
func (hide cleaner) known(business, s string) string {
	return signInLink.ReplaceAllString(hide(business, agent.Visible(s)), agent.Redacted)
}

// json cleans the strings of a document, and redacts it by its keys (RD-1).
func (hide cleaner) json(v any) (json.RawMessage, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("decode the result: %w", err)
	}
	if data, err = json.Marshal(agent.Redact(hide.each("", "", doc))); err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return data, nil
}

// ours are the members that hold this program's own ids and words. What belongs to a
// sign-in is not looked for there: a business that picks a code like one of our words would
// take that out.
var ours = []string{
	"id", "status", "reason", "next", "effect", "business", "conversation", "state", "verdict", "meaning", "message", "profile",
	"expires", "deadline", "created", "received", "signed", "issues",
}

// own cleans those.
var own = cleaner(func(_, text string) string { return text })

// each cleans a value that is a member's, and about a business as far as what it is in
// tells.
func (hide cleaner) each(business, member string, v any) any {
	switch v := v.(type) {
	case string:
		if slices.Contains(ours, member) {
			return own.known("", v)
		}
		return hide.known(business, v)
	case []any:
		for i := range v {
			v[i] = hide.each(business, member, v[i])
		}
	case map[string]any:
		if id, ok := v["business"].(string); ok && id != "" {
			business = id
		} else if id, ok := v["id"].(string); ok && v["cardUrl"] != nil {
			business = id // it is a business
		}
		for k := range v {
			v[k] = hide.each(business, k, v[k])
		}
	}
	return v
}
