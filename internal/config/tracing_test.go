package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTracingTarget(t *testing.T) {
	for endpoint, want := range map[string][2]string{
		"c.example:4317":                {"c.example:4317", ""},
		"c.example:4318/otlp/v1/traces": {"c.example:4318", "/otlp/v1/traces"},
		"[::1]:4318/":                   {"[::1]:4318", "/"},
	} {
		if address, path := (Tracing{Endpoint: endpoint}).Target(); address != want[0] || path != want[1] {
			t.Errorf("%s: %s and %s", endpoint, address, path)
		}
	}
}

// Headers come from a file, and nothing of their values is in an error.
func TestTracingHeaders(t *testing.T) {
	for content, want := range map[string]map[string]string{
		"":                                     {},
		"\n  \n":                               {},
		"Authorization: Bearer hunter2":        {"authorization": "Bearer hunter2"},
		"a: b:c\r\nx-team:  d \n":              {"a": "b:c", "x-team": "d"},
		"hunter2":                              nil,
		": hunter2":                            nil,
		"a b: hunter2":                         nil,
		"a:":                                   nil,
		"a: hunter2\x01":                       nil,
		"a: hunter2\nA: hunter2":               nil,
		"a: hunter2\n# a comment is no header": nil,
	} {
		file := filepath.Join(t.TempDir(), "headers")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Tracing{HeadersFile: file}.Headers()
		switch {
		case want == nil && (err == nil || !strings.Contains(err.Error(), "tracing.headersFile: line ") || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%q: %v", content, err)
		case want != nil && (err != nil || !maps.Equal(got, want)):
			t.Errorf("%q: %v, %v", content, got, err)
		}
		c := Default()
		c.Tracing.Endpoint, c.Tracing.HeadersFile = "c.example:4317", file
		if err := c.CheckFiles(false); (err == nil) != (want != nil) {
			t.Errorf("%q: checked with %v", content, err)
		}
	}
	if _, err := (Tracing{HeadersFile: filepath.Join(t.TempDir(), "none")}).Headers(); err == nil || !strings.Contains(err.Error(), "tracing.headersFile") {
		t.Errorf("a file that is not there: %v", err)
	}
	c := Default()
	c.Tracing.Endpoint, c.Tracing.CAFile = "c.example:4317", filepath.Join(t.TempDir(), "none")
	if err := c.CheckFiles(false); err == nil || !strings.Contains(err.Error(), "tracing.caFile") {
		t.Errorf("an authority that is not there: %v", err)
	}
}
