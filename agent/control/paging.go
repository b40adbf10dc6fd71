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

// pageOf is one page of a list, as messages, and the token of the next. id names an
// item: a page begins after the last item of the one before.
func pageOf[M any, P messagePtr[M], V any](list string, views []V, id func(V) string, req pageRequest) (page []P, next string, err error) {
	begin := 0
	if token := req.GetPageToken(); token != "" {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
		last, ok := strings.CutPrefix(string(raw), list+" ")
		if err != nil || !ok {
			return nil, "", invalid("page_token", "is not one that this list gave out")
		}
		at := slices.IndexFunc(views, func(v V) bool { return id(v) == last })
		if at < 0 {
			return nil, "", invalid("page_token", "the list has changed meanwhile: begin it anew")
		}
		begin = at + 1
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
			return page, base64.RawURLEncoding.EncodeToString([]byte(list + " " + id(views[begin+i-1]))), nil
		}
		page = append(page, m)
	}
	return page, "", nil
}
