package jwks

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Header values that never change, made once so that a request makes none.
var (
	headerJSON    = []string{"application/json"}
	headerAny     = []string{"*"}
	headerAllow   = []string{"GET, HEAD, OPTIONS"}
	headerMethods = []string{"GET, HEAD"}
	headerDay     = []string{"86400"}
)

// retryAfterMax bounds the Retry-After of a 503, in seconds; the value is drawn
// from 1 to it so that clients do not come back all at once.
const retryAfterMax = 5

// Handler serves the document that source returns: GET and HEAD, a strong ETag
// with If-None-Match, CORS for everybody, Cache-Control "public, max-age" of
// maxAge in whole seconds (at least 1, less if the document says so). If source
// fails the answer is 503 with Retry-After; its error is not shown. A 200 costs
// no allocation.
func Handler(maxAge time.Duration, source func() (*Document, error)) http.Handler {
	return &handler{source: source, cacheControl: cacheControls(maxAge)}
}

type handler struct {
	source func() (*Document, error)
	// cacheControl[n] is the header for n seconds; the last is for maxAge.
	cacheControl [][]string
}

func cacheControls(maxAge time.Duration) [][]string {
	// A day is more than any key set should be kept, and bounds the table.
	seconds := min(max(int(maxAge/time.Second), 1), 24*60*60)
	table := make([][]string, seconds+1)
	for n := range table {
		table[n] = []string{fmt.Sprintf("public, max-age=%d", max(n, 1))}
	}
	return table
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header["Access-Control-Allow-Origin"] = headerAny
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		header["Allow"] = headerAllow
		header["Access-Control-Allow-Methods"] = headerMethods
		header["Access-Control-Allow-Headers"] = headerAny
		header["Access-Control-Max-Age"] = headerDay
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		header["Allow"] = headerAllow
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}

	doc, err := h.source()
	if err != nil || doc == nil {
		header.Set("Retry-After", strconv.Itoa(1+rand.IntN(retryAfterMax)))
		header["Content-Type"] = headerJSON
		w.WriteHeader(http.StatusServiceUnavailable)
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"error":"unavailable"}`))
		}
		return
	}

	header["Etag"] = doc.etag
	header["Cache-Control"] = h.cacheControlFor(doc)
	if match := r.Header["If-None-Match"]; len(match) > 0 && matches(match, doc.ETag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header["Content-Type"] = headerJSON
	header["Content-Length"] = doc.length
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		// A client that went away is nobody's error.
		_, _ = w.Write(doc.Body)
	}
}

func (h *handler) cacheControlFor(doc *Document) []string {
	last := len(h.cacheControl) - 1
	if doc.MaxAge > 0 {
		last = min(last, int(doc.MaxAge/time.Second))
	}
	return h.cacheControl[last]
}

// matches tells whether an If-None-Match header names the tag (RFC 9110 section
// 13.1.2: a list, or "*", compared weakly).
func matches(header []string, etag string) bool {
	for _, line := range header {
		for line != "" {
			var tag string
			tag, line, _ = strings.Cut(line, ",")
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if tag == etag || tag == "*" {
				return true
			}
		}
	}
	return false
}
