package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// Face is how a caller reaches a replica.
type Face string

// The faces.
const (
	REST Face = "REST"
	GRPC Face = "gRPC"
)

// Record is a request and what came of it.
type Record struct {
	Sent    time.Time
	Took    time.Duration
	Replica int
	Face    Face
	Caller  string
	Op      string // sign, status or enroll
	Want    Want
	Status  int    // as on REST; 0: no answer
	Problem string // what the contract does not allow of the answer; or why there is none
	Subject string
	Token   Token // of a sign that was answered 200
}

// Token is what is kept of a token.
type Token struct {
	KID, JTI          string
	IssuedAt, Expires int64
	raw               string
}

// Want says what kind of request it is, and so how it may be answered.
type Want string

// The kinds of requests.
const (
	Good         Want = "good"         // by a caller that may
	Forged       Want = "forged"       // with a credential that never was
	Unregistered Want = "unregistered" // for an audience that is not registered
	Malformed    Want = "malformed"
	Replayed     Want = "replayed" // with an assertion that was used at another replica
)

// endpoint is the way to one replica.
type endpoint struct {
	replica *Replica
	issuer  string
	timeout time.Duration
	http    *http.Client
	conn    *grpc.ClientConn
	grpc    signerv1.SignerServiceClient
}

func (f *Fleet) endpoint(t T, r *Replica) *endpoint {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(strings.TrimPrefix(f.Issuer, "http://")),
		// A replica that comes back is found at once.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: time.Second}),
	)
	if err != nil {
		t.Fatalf("client of replica %d: %v", r.Index, err)
	}
	return &endpoint{
		replica: r, issuer: f.Issuer, timeout: f.Deadline + slack,
		http: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 256},
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the signer redirects") },
		},
		conn: conn, grpc: signerv1.NewSignerServiceClient(conn),
	}
}

func (e *endpoint) close() {
	e.http.CloseIdleConnections()
	e.conn.Close()
}

// request is one call to be made.
type request struct {
	face     Face
	caller   *Caller
	op       string
	want     Want
	audience string
	// assertion is one to use again; empty: a new one.
	assertion string
}

// do makes a call and records it.
func (e *endpoint) do(rq request) Record {
	rec := Record{Replica: e.replica.Index, Face: rq.face, Caller: rq.caller.Name, Op: rq.op, Want: rq.want}
	url := e.issuer + "/pact/" + rq.op
	authorization := rq.assertion
	if authorization == "" {
		authorization = rq.caller.authorization(url)
	}
	nonce := rand.Text()
	ctx, cancel := context.WithTimeout(context.Background(), e.timeout)
	defer cancel()
	var a answer
	var err error
	rec.Sent = time.Now()
	if rq.face == REST {
		a, err = e.rest(ctx, rq, url, authorization, nonce)
	} else {
		a, err = e.rpc(ctx, rq, url, authorization, nonce)
	}
	rec.Took = time.Since(rec.Sent)
	var silence *noAnswer
	if errors.As(err, &silence) {
		rec.Problem = silence.Error()
		return rec
	}
	rec.Status = a.status
	if err == nil && a.status == http.StatusOK && rq.op == "sign" {
		if a.nonce != nonce {
			err = fmt.Errorf("the nonce came back as %q", a.nonce)
		} else if rec.Token, rec.Subject, err = peek(a.token); err == nil {
			rec.Token.raw = a.token
		}
	}
	if err != nil {
		rec.Problem = err.Error()
	}
	if rq.op != "sign" {
		rec.Subject = a.subject
	}
	return rec
}

// noAnswer is a request that the replica did not answer: the connection broke, or
// time was up.
type noAnswer struct{ err error }

func (n *noAnswer) Error() string { return "no answer: " + n.err.Error() }

// answer is what came back. An error beside it says what is wrong with it.
type answer struct {
	status                int
	token, nonce, subject string
}

// words are the bodies of refusals, by status.
var words = map[int]string{
	400: "invalid_request", 401: "unauthorized", 403: "disabled", 422: "audience_not_registered", 429: "rate_limited", 503: "unavailable",
}

func (e *endpoint) rest(ctx context.Context, rq request, url, authorization, nonce string) (answer, error) {
	body := map[string]any{}
	switch rq.op {
	case "sign":
		body["audience"], body["nonce"] = rq.audience, nonce
	case "enroll":
		jwk := rq.caller.jwk()
		body["publicJwk"] = map[string]string{"kty": jwk.Kty, "crv": jwk.Crv, "x": jwk.X, "y": jwk.Y, "kid": jwk.Kid, "alg": *jwk.Alg, "use": *jwk.Use}
		body["proof"] = rq.caller.assertion(url)
	}
	if rq.want == Malformed {
		body["sub"] = "somebody else"
	}
	data, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.replica.Public+"/pact/"+rq.op, bytes.NewReader(data))
	if err != nil {
		return answer{}, err
	}
	req.Host = strings.TrimPrefix(e.issuer, "http://")
	req.Header.Set("Content-Type", "application/json")
	if rq.op != "enroll" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return answer{}, &noAnswer{err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 32<<10+1))
	if err != nil {
		return answer{}, &noAnswer{err}
	}
	a := answer{status: resp.StatusCode}
	if kind := resp.Header.Get("Content-Type"); kind != "application/json" {
		return a, fmt.Errorf("%d with content type %q", a.status, kind)
	}
	if len(text) > 32<<10 {
		return a, fmt.Errorf("%d with more than 32 KiB", a.status)
	}
	if a.status != http.StatusOK {
		return a, checkRefusal(a.status, text, resp.Header.Get("Retry-After"))
	}
	var got struct {
		Token, Nonce, Subject, Issuer string
		Disabled                      bool
		Audiences                     map[string]string
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		return a, fmt.Errorf("200 with %s: %w", text, err)
	}
	a.token, a.nonce, a.subject = got.Token, got.Nonce, got.Subject
	return a, nil
}

// checkRefusal holds a refusal to the contract's table.
func checkRefusal(status int, body []byte, retry string) error {
	if want := `{"error":"` + words[status] + `"}`; words[status] != "" && string(body) != want {
		return fmt.Errorf("%d with the body %q", status, body)
	}
	if seconds, err := strconv.Atoi(retry); (status == 503 || status == 429) && (err != nil || seconds < 1) {
		return fmt.Errorf("%d with Retry-After %q", status, retry)
	}
	return nil
}

// reasons are the refusals on gRPC and what they are on REST.
var reasons = map[string]int{
	"INVALID_REQUEST": 400, "UNAUTHORIZED": 401, "DISABLED": 403, "AUDIENCE_NOT_REGISTERED": 422, "RATE_LIMITED": 429, "UNAVAILABLE": 503,
}

func (e *endpoint) rpc(ctx context.Context, rq request, url, authorization, nonce string) (a answer, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", authorization)
	a.status = http.StatusOK
	switch rq.op {
	case "sign":
		if rq.want == Malformed {
			nonce = ""
		}
		var r *signerv1.SignResponse
		r, err = e.grpc.Sign(ctx, &signerv1.SignRequest{Audience: rq.audience, Nonce: nonce})
		a.token, a.nonce = r.GetToken(), r.GetNonce()
	case "status":
		var r *signerv1.StatusResponse
		r, err = e.grpc.Status(ctx, &signerv1.StatusRequest{})
		a.subject = r.GetSubject()
	case "enroll":
		var r *signerv1.EnrollResponse
		r, err = e.grpc.Enroll(ctx, &signerv1.EnrollRequest{PublicJwk: rq.caller.jwk(), Proof: rq.caller.assertion(url)})
		a.subject = r.GetSubject()
	}
	if err == nil {
		return a, nil
	}
	st := status.Convert(err)
	var reason string
	var retry bool
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.Reason
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration() > 0
		}
	}
	if reason == "" { // not the signer's word
		return a, &noAnswer{err}
	}
	if a.status = reasons[reason]; a.status == 0 {
		return a, fmt.Errorf("unknown reason %s", reason)
	}
	if (a.status == 503 || a.status == 429) && !retry {
		return a, fmt.Errorf("%s without RetryInfo", reason)
	}
	return a, nil
}

// peek reads a token without verifying it; verifiers do.
func peek(token string) (Token, string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Token{}, "", fmt.Errorf("a token of %d parts", len(parts))
	}
	var header struct{ Kid string }
	var claims struct {
		Jti, Sub string
		Iat, Exp int64
	}
	for i, into := range []any{&header, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			return Token{}, "", fmt.Errorf("a token's part %d: %w", i, err)
		}
		if err := json.Unmarshal(data, into); err != nil {
			return Token{}, "", fmt.Errorf("a token's part %d: %w", i, err)
		}
	}
	return Token{KID: header.Kid, JTI: claims.Jti, IssuedAt: claims.Iat, Expires: claims.Exp}, claims.Sub, nil
}
