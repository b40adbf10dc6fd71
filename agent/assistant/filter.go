package assistant

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pactsigner/pactsigner/agent"
)

// filter is the last thing that sees a result before the assistant does. What it
// replaces should not have come this far: no result is made of a secret.
func filter(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil {
			if clean := scrub(err.Error()); clean != err.Error() {
				return nil, fmt.Errorf("%s", clean)
			}
			return nil, err
		}
		switch r := res.(type) {
		case *mcp.CallToolResult:
			if r.StructuredContent != nil {
				data, err := scrubJSON(r.StructuredContent)
				if err != nil {
					return nil, err
				}
				r.StructuredContent = data
				r.Content = []mcp.Content{&mcp.TextContent{Text: string(data)}}
				break
			}
			for i, c := range r.Content {
				t, ok := c.(*mcp.TextContent)
				if !ok {
					return nil, fmt.Errorf("a result of %T, which no tool makes", c)
				}
				r.Content[i] = &mcp.TextContent{Text: scrub(t.Text)}
			}
		case *mcp.ListResourcesResult:
			for _, l := range r.Resources {
				l.Name, l.Description, l.URI = scrub(l.Name), scrub(l.Description), scrub(l.URI)
			}
		case *mcp.ReadResourceResult:
			for _, c := range r.Contents {
				data, err := scrubJSON(json.RawMessage(c.Text))
				if err != nil {
					return nil, err
				}
				c.Text = string(data)
			}
		}
		return res, nil
	}
}

// signInLink is a link that a person signs in by: all of it goes, not its code alone.
var signInLink = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>]*(?:user|device)_?code[^\s"'<>]*`)

func scrub(text string) string {
	return agent.RedactText(signInLink.ReplaceAllString(text, agent.Redacted))
}

// scrubJSON scrubs the strings of a document, and redacts it by its keys (RD-1).
func scrubJSON(v any) (json.RawMessage, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("decode the result: %w", err)
	}
	if data, err = json.Marshal(agent.Redact(links(doc))); err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return data, nil
}

func links(v any) any {
	switch v := v.(type) {
	case string:
		return signInLink.ReplaceAllString(v, agent.Redacted)
	case []any:
		for i := range v {
			v[i] = links(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = links(v[k])
		}
	}
	return v
}
