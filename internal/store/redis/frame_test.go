package redis

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		sent string
		ok   bool
	}{
		"a status":            {"+OK\r\n", true},
		"an error":            {"-ERR no\r\n", true},
		"a number":            {":-12\r\n", true},
		"a string":            {"$5\r\n*9\r\n+\r\n", true},
		"an empty string":     {"$0\r\n\r\n", true},
		"no string":           {"$-1\r\n", true},
		"no array":            {"*-1\r\n", true},
		"an array":            {"*3\r\n$1\r\na\r\n*2\r\n:1\r\n*0\r\n$-1\r\n", true},
		"a sentinel's hello":  {"%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nmodules\r\n*0\r\n:1\r\n", true},
		"a sentinel's push":   {">2\r\n+a\r\n=5\r\ntxt:b\r\n_\r\n#t\r\n", true},
		"a map too large":     {"%1048576\r\n", false},
		"deep":                {strings.Repeat("*1\r\n", maxReplyDepth) + ":1\r\n", true},
		"too deep":            {strings.Repeat("*1\r\n", maxReplyDepth+1), false},
		"too deep at the end": {strings.Repeat("*2\r\n:1\r\n", maxReplyDepth+1), false},
		"a long string":       {fmt.Sprintf("$%d\r\n", maxReplyBytes), true},
		"too long a string":   {fmt.Sprintf("$%d\r\n", maxReplyBytes+1), false},
		"long ones together":  {fmt.Sprintf("*2\r\n$3\r\nabc\r\n$%d\r\n", maxReplyBytes-2), false},
		"too many":            {fmt.Sprintf("*%d\r\n", maxReplyItems+1), false},
		"many together":       {fmt.Sprintf("*2\r\n*%d\r\n", maxReplyItems-1), false},
		"more than a number":  {"$9223372036854775808\r\n", false},
		"less than none":      {"$-2\r\n", false},
		"no number":           {"$x\r\n", false},
		"an empty line":       {"\r\n", false},
		"another protocol":    {"HTTP/1.1 400 Bad Request\r\n", false},
		"a line without end":  {"+" + strings.Repeat("a", maxReplyLine), false},
	} {
		if !c.ok { // also if all was well before
			c.sent = "*2\r\n$1\r\na\r\n$1\r\nb\r\n" + c.sent
		}
		for _, piece := range []int{1, 3, len(c.sent)} {
			var f frames
			var err error
			for at := 0; at < len(c.sent) && err == nil; at += piece {
				err = f.take([]byte(c.sent[at:min(at+piece, len(c.sent))]))
			}
			if (err == nil) != c.ok {
				t.Errorf("%s, in pieces of %d: %v", name, piece, err)
			}
			if c.ok && f.rest == 0 && (len(f.open) > 0 || f.bytes > 0 || f.items > 0) {
				t.Errorf("%s: %+v is left", name, f)
			}
		}
	}
}

// impostor answers what a store asks of scripts with the same bytes.
func impostor(t *testing.T, reply string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					answer := "+OK\r\n"
					switch asked := strings.ToLower(string(b[:n])); {
					case strings.Contains(asked, "hello"):
						answer = "-ERR unknown command\r\n"
					case strings.Contains(asked, "evalsha"), strings.Contains(asked, "info"):
						answer = reply
					}
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

// Whatever answers in the place of a server, it neither ends the process nor takes
// its memory.
func TestImpostor(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	t.Run("each", impostors)
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 1024 {
		t.Errorf("it took %d MB", took)
	}
}

func impostors(t *testing.T) {
	for name, reply := range map[string]string{
		"a string without end":    "$9223372036854775800\r\n",
		"3 GB":                    "$3000000000\r\n",
		"an array without end":    "*9223372036854775800\r\n",
		"10^9 elements":           "*1000000000\r\n",
		"less than none":          "$-5\r\n",
		"arrays in arrays":        strings.Repeat("*1\r\n", 100000),
		"another protocol":        "HTTP/1.1 400 Bad Request\r\n\r\n",
		"a move":                  "-MOVED 1 127.0.0.1:1\r\n",
		"a number":                ":1\r\n",
		"nothing":                 "$-1\r\n",
		"an empty list":           "*0\r\n",
		"a list of nothing":       "*1\r\n$-1\r\n",
		"half a sign":             "$1\r\nA\r\n",
		"a limit without an end":  "$4\r\nL0\x00-\r\n",
		"done, and nothing else":  "*1\r\n$4\r\ndone\r\n",
		"four that mean nothing":  "*4\r\n$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n",
		"eight that mean nothing": "*8\r\n" + strings.Repeat("*-1\r\n", 8),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := unmarked(t, Options{Addrs: []string{impostor(t, reply)}, timeouts: defaultTimeouts})
			asked := every(s)
			for what, ask := range asks(s) {
				asked[what] = ask
			}
			asked["kill"] = func(ctx context.Context) error {
				_, _, err := s.Kill(ctx, killAll("k"), 0, acting("kill", "k"))
				return err
			}
			asked["log"] = func(ctx context.Context) error { _, _, err := s.AuditHead(ctx); return err }
			asked["audit"] = func(ctx context.Context) error { return s.AppendAudit(ctx, acting("audit", "x")) }
			asked["schedule"] = func(ctx context.Context) error { _, _, err := s.Mirrored(ctx, testIssuer); return err }
			delete(asked, "enforce") // which needs no answer but that it was done
			var asking sync.WaitGroup
			for what, ask := range asked {
				asking.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // some ask again
					defer cancel()
					if err := ask(ctx); err == nil && strings.HasPrefix(reply, "HTTP") {
						t.Errorf("%s went well", what)
					}
				})
			}
			asking.Wait()
		})
	}
}
