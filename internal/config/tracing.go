package config

import (
	"bytes"
	"fmt"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"strings"
)

func (t Tracing) validate(v *problems) {
	v.oneOf("tracing.protocol", t.Protocol, "grpc", "http")
	if !(t.SampleRatio >= 0 && t.SampleRatio <= 1) {
		v.add("tracing.sampleRatio", "use 0 for none to 1 for every request")
	}
	if !t.Enabled() {
		if t.Insecure || t.CAFile != "" || t.HeadersFile != "" || t.TrustParent {
			v.add("tracing.endpoint", "name the collector, for example collector.example.com:4317, or remove the rest of tracing, which is not used without it")
		}
		return
	}
	address, path := t.Target()
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil || host == "" || !validPort(port, 1) || strings.ContainsAny(t.Endpoint, " @?#") || strings.Contains(t.Endpoint, "//"):
		v.add("tracing.endpoint", "write host:port without a scheme, for example collector.example.com:4317")
	case path != "" && t.Protocol == "grpc":
		v.add("tracing.endpoint", "grpc has no path; write host:port, or say protocol http")
	case path != "" && !validPath(path):
		v.add("tracing.endpoint", "has a path that is none; write it as in a URL, for example /v1/traces")
	}
	if t.Insecure && t.CAFile != "" {
		v.add("tracing.caFile", "is not used with insecure; remove one of them")
	}
}

func validPath(path string) bool {
	u, err := url.Parse("http://host" + path)
	return err == nil && u.EscapedPath() == path
}

// Target is the endpoint as host:port, and the path that it names, which may be empty.
func (t Tracing) Target() (address, path string) {
	address, path, found := strings.Cut(t.Endpoint, "/")
	if found {
		path = "/" + path
	}
	return address, path
}

// headerName is RFC 9110's token, without what no header of a collector needs.
var headerName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// Headers reads HeadersFile. Errors hold no value of it.
func (t Tracing) Headers() (map[string]string, error) {
	headers := make(map[string]string)
	if t.HeadersFile == "" {
		return headers, nil
	}
	content, err := os.ReadFile(t.HeadersFile)
	if err != nil {
		return nil, fmt.Errorf("tracing.headersFile: %w", err)
	}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		name, value, ok := strings.Cut(string(line), ":")
		value = textproto.TrimString(value)
		if !ok || !headerName.MatchString(name) || value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("tracing.headersFile: line %d of %s: write name: value", number, t.HeadersFile)
		}
		name = strings.ToLower(name)
		if _, twice := headers[name]; twice {
			return nil, fmt.Errorf("tracing.headersFile: line %d of %s: %s is there twice; keep one", number, t.HeadersFile, name)
		}
		headers[name] = value
	}
	return headers, nil
}
