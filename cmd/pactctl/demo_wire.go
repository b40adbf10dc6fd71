package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/jwks"
	"github.com/pactsigner/pactsigner/sandbox"
)

// wire remembers the messages that came to the business and what it answered. It
// stands before the business, so that it sees the same of an agent in this process
// and of one in another. It holds secrets, in memory only.
type wire struct {
	mu  sync.Mutex
	all []*exchange
}

// exchange is a message as it arrived, and its answer.
type exchange struct {
	kid               string // of the PA-JWT
	delegation        agent.Secret
	body              agent.Secret
	receipt           jsontext.Value
	arrived, answered time.Time
}

// maxOverheard is how much of a message is read: more than any business takes.
const maxOverheard = 1 << 20

// watch returns a business whose messages are remembered.
func (w *wire) watch(business http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/message:send") {
			business.ServeHTTP(rw, r)
			return
		}
		x := w.arrive(r)
		answer := &overheard{ResponseWriter: rw}
		business.ServeHTTP(answer, r)
		w.answer(x, answer)
		answer.send() // once it is remembered
	})
}

// arrive remembers a message from the moment on at which it is here.
func (w *wire) arrive(r *http.Request) *exchange {
	x := &exchange{arrived: time.Now()}
	if token, err := jwks.ParseCompact(bearerOf(r.Header, "Authorization"), jose.ES256, jose.RS256); err == nil {
		x.kid = token.KeyID
	}
	x.delegation = agent.Secret(bearerOf(r.Header, "X-A2A-User-Delegation"))
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxOverheard)) // the business reads on, to the error if there is one
	x.body = agent.Secret(body)
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, x)
	return x
}

func (w *wire) answer(x *exchange, o *overheard) {
	receipt := agent.ParseReply(o.status(), o.Header().Get("Content-Type"), "", o.body.Bytes()).Message.Receipt
	w.mu.Lock()
	defer w.mu.Unlock()
	x.receipt, x.answered = receipt, time.Now()
}

// overheard is an answer that is kept until it is whole.
type overheard struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (o *overheard) WriteHeader(code int)        { o.code = cmp.Or(o.code, code) }
func (o *overheard) Write(b []byte) (int, error) { return o.body.Write(b) }
func (o *overheard) status() int                 { return cmp.Or(o.code, http.StatusOK) }

func (o *overheard) send() {
	o.ResponseWriter.WriteHeader(o.status())
	_, _ = o.ResponseWriter.Write(o.body.Bytes()) // who does not listen any more
}

func bearerOf(h http.Header, name string) string {
	token, _ := strings.CutPrefix(h.Get(name), "Bearer ")
	return token
}

// messages are the messages that arrived, oldest first.
func (w *wire) messages() []exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]exchange, len(w.all))
	for i, x := range w.all {
		out[i] = *x
	}
	return out
}

// count is how many messages arrived, whatever became of them.
func (w *wire) count() int { return len(w.messages()) }

// last is the message that arrived last; the zero exchange if none did.
func (w *wire) last() exchange {
	all := w.messages()
	if len(all) == 0 {
		return exchange{}
	}
	return all[len(all)-1]
}

// message is the text of a message, and the SHA-256 of its body without its
// contextId, as approvals have it.
func (x exchange) message() (text, digest string) {
	var req struct {
		Message struct {
			ID    string `json:"messageId"`
			Parts []struct {
				Text string `json:"text"`
			} `json:"parts"`
		} `json:"message"`
	}
	if err := json.Unmarshal([]byte(x.body.Reveal()), &req); err != nil || len(req.Message.Parts) != 1 {
		return "", ""
	}
	text = req.Message.Parts[0].Text
	body, err := agent.BuildMessage(req.Message.ID, "", text)
	if err != nil {
		return "", ""
	}
	return text, hexDigest(body)
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// turns remembers what the business's agents were asked, and what they did.
type turns struct {
	mu  sync.Mutex
	all []turn
}

type turn struct {
	brand string
	sandbox.Turn
	sandbox.Reply
}

// watch returns a brand whose turns are remembered.
func (t *turns) watch(b sandbox.Brand) sandbox.Brand {
	respond := b.Respond
	b.Respond = func(ctx context.Context, in sandbox.Turn) (sandbox.Reply, error) {
		out, err := respond(ctx, in)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all = append(t.all, turn{b.Name, in, out})
		return out, err
	}
	return b
}

func (t *turns) since(n int) []turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all[min(n, len(t.all)):])
}

func (t *turns) count() int { return len(t.since(0)) }
