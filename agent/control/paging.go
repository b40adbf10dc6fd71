package control

import (
	"encoding/base64"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// maxPageBytes is where a page ends though there were room for more items: clients of
// gRPC take 4 MiB by default.
const maxPageBytes = 2 << 20

// pageRequest is a request for a page of a list.
type pageRequest interface {
	GetPageSize() int32
	GetPageToken() string
}

// maxAnchors bounds a page token, in bytes: base64 makes 4/3 of them.
const maxAnchors = 2400

// pageOf is one page of a list, as messages, and the token of the next. id names an
// item: a page begins after the last item of the one before. If that is gone, because
// it was decided or has ended, it begins after the one that stood before it, and so on:
// nothing is left out, and where all are gone something may come again.
func pageOf[M any, P messagePtr[M], V any](list string, views []V, id func(V) string, req pageRequest) (page []P, next string, err error) {
	var anchors []string // the last first
	begin := 0
	if token := req.GetPageToken(); token != "" {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
		said, ok := strings.CutPrefix(string(raw), list+"\n")
		if err != nil || !ok {
			return nil, "", invalid("page_token", "is not one that this list gave out")
		}
		anchors = strings.Split(said, "\n")
		for _, a := range anchors {
			if at := slices.IndexFunc(views, func(v V) bool { return id(v) == a }); at >= 0 {
				begin = at + 1
				break
			}
		}
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = pageSize
	}
	bytes := 0
	for i, v := range views[begin:] {
		m, err := messageOf[M, P](v)
		if err != nil {
			return nil, "", err
		}
		bytes += proto.Size(m)
		if i == size || i > 0 && bytes > maxPageBytes {
			return page, base64.RawURLEncoding.EncodeToString([]byte(list + "\n" + strings.Join(atMost(maxAnchors, anchors), "\n"))), nil
		}
		page = append(page, m)
		anchors = append([]string{id(v)}, anchors...)
	}
	return page, "", nil
}

// filtered names a list by what it is asked for: a page token goes on with that alone.
func filtered(list string, all bool) string {
	if all {
		return list + " all"
	}
	return list
}

// atMost are the first of texts, together of at most n bytes; the first always is one.
func atMost(n int, texts []string) []string {
	for i, s := range texts {
		if n -= len(s) + 1; n < 0 && i > 0 {
			return texts[:i]
		}
	}
	return texts
}
