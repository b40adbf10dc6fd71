package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pactsigner/pactsigner/internal/config"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// callTimeout bounds every call but the wait for a barrier. The longest act, a
// registration, gives a Provider 10 s.
const callTimeout = 30 * time.Second

// target holds the flags that say which signer an operator command talks to.
type target struct {
	server, tokenFile, context, issuer, caFile string
	insecure                                   bool
}

// newTarget adds the flags to cmd and everything below it.
func newTarget(cmd *cobra.Command) *target {
	t := &target{}
	f := cmd.PersistentFlags()
	f.StringVar(&t.server, "server", "", "`URL` of the signer's admin listener (or PACT_SERVER)")
	f.StringVar(&t.tokenFile, "token-file", "", "`FILE` that holds the admin token (or PACT_TOKEN_FILE)")
	f.StringVar(&t.context, "context", "", "`NAME` of the context to use (or PACT_CONTEXT)")
	f.StringVar(&t.caFile, "ca-file", "", "`FILE` of PEM certificates to trust instead of the system's")
	f.BoolVar(&t.insecure, "insecure-http", false, "allow plain http to a host that is not this machine")
	return t
}

// issuerFlag adds --issuer, for commands that work on one issuer.
func (t *target) issuerFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&t.issuer, "issuer", "", "issuer `URL` to work on; needed if the signer has several")
}

// resolve says where the signer is, in the order that `pactctl context --help`
// states.
func (t *target) resolve(a *app) (signerContext, error) {
	var s signerContext
	name := t.context
	if name == "" && t.server == "" && os.Getenv("PACT_SERVER") == "" {
		name = os.Getenv("PACT_CONTEXT")
	}
	switch {
	case t.server != "":
		s.Server = t.server
	case t.context != "":
	case os.Getenv("PACT_SERVER") != "":
		s.Server = os.Getenv("PACT_SERVER")
	}
	if s.Server == "" {
		c, err := loadContexts()
		if err != nil {
			return s, err
		}
		if name == "" && c.Contexts[c.Current].Server == "" && c.Contexts[c.Current].Agent != "" {
			c.Current = "" // it is of an agent alone
		}
		if name == "" {
			name = c.Current
		}
		if name != "" {
			if s, err = c.get(name); err != nil {
				return s, err
			}
			if s.Server == "" {
				return s, usagef("context %q names no signer: pactctl context set %[1]s --server URL --token-file FILE", name)
			}
		} else if s, err = embeddedSigner(a); err != nil {
			return s, err
		}
	}
	if t.tokenFile != "" {
		s.TokenFile = t.tokenFile
	}
	if s.TokenFile == "" {
		s.TokenFile = os.Getenv("PACT_TOKEN_FILE")
	}
	if s.TokenFile == "" {
		return s, usagef("which admin token? Say --token-file FILE or set PACT_TOKEN_FILE")
	}
	if t.issuer != "" {
		s.Issuer = t.issuer
	}
	if t.caFile != "" {
		s.CAFile = t.caFile
	}
	s.Insecure = s.Insecure || t.insecure
	return s, nil
}

// embeddedSigner finds the admin token of a signer that runs on this machine
// with its default data folder.
func embeddedSigner(a *app) (signerContext, error) {
	server, tokenFile := embeddedDefaults()
	if _, err := os.Stat(tokenFile); err != nil {
		return signerContext{}, usagef("which signer? Say --server URL --token-file FILE, choose a context (pactctl context --help), or start one here with: signer serve")
	}
	a.note("Using the embedded signer at %s.", server)
	return signerContext{Server: server, TokenFile: tokenFile}, nil
}

// parseServer checks the URL of an admin listener. Plain http is for this machine
// only, unless insecureHTTP.
func parseServer(server string, insecureHTTP bool) (*url.URL, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--server %q is not a URL like https://signer.example.com:8789", server)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, usagef("--server %q must be only scheme, host and port", server)
	}
	if u.Scheme == "http" && !insecureHTTP && !loopback(u.Hostname()) {
		return nil, usagef("--server %q would send the admin token in the clear: use https, or say --insecure-http", server)
	}
	return u, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// readToken reads a token file; what names the token in errors.
func readToken(what, path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || len(token) > 4096 || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", fmt.Errorf("%s: %s does not hold one token on one line", what, path)
	}
	return token, nil
}

// operator is a connection to a signer's admin listener.
type operator struct {
	signerv1.AdminServiceClient
	// issuer is the one to work on, "" to leave it to the signer.
	issuer string
	// server is the URL of its admin listener.
	server string
}

// operate connects to the signer that the flags name and runs do. Errors of calls
// are already in words for people.
func (a *app) operate(ctx context.Context, t *target, do func(ctx context.Context, s *operator) error) error {
	s, err := t.resolve(a)
	if err != nil {
		return err
	}
	u, err := parseServer(s.Server, s.Insecure)
	if err != nil {
		return err
	}
	token, err := readToken("admin token", s.TokenFile)
	if err != nil {
		return err
	}
	transport, port := insecure.NewCredentials(), "80"
	if u.Scheme == "https" {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if s.CAFile != "" {
			pem, err := os.ReadFile(s.CAFile)
			if err != nil {
				return fmt.Errorf("--ca-file: %w", err)
			}
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(pem) {
				return fmt.Errorf("--ca-file: %s holds no PEM certificate", s.CAFile)
			}
		}
		transport, port = credentials.NewTLS(config), "443"
	}
	if u.Port() != "" {
		port = u.Port()
	}
	words := func(err error) error { return describe(err, s) }
	conn, err := grpc.NewClient("dns:///"+net.JoinHostPort(u.Hostname(), port),
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer(token)),
		grpc.WithUserAgent("pactctl/"+version),
		grpc.WithConnectParams(grpc.ConnectParams{ // whoever watches sees soon that it is back
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}, MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			var header metadata.MD
			err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Header(&header))...)
			if said := header.Get(signer.NotDurableHeader); err == nil && len(said) > 0 && method != signerv1.AdminService_Kill_FullMethodName { // which says it in its answer
				a.note("%s", said[0])
			}
			return words(err)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			cs, err := open(ctx, desc, cc, method, opts...)
			return &wordyStream{cs, words}, words(err)
		}),
	)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", s.Server, err)
	}
	defer conn.Close()
	return do(ctx, &operator{signerv1.NewAdminServiceClient(conn), s.Issuer, s.Server})
}

// bearer puts the admin token on every call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is false because parseServer has decided already.
func (b bearer) RequireTransportSecurity() bool { return false }

// wordyStream puts the errors of a stream into words.
type wordyStream struct {
	grpc.ClientStream
	words func(error) error
}

func (s *wordyStream) RecvMsg(m any) error { return s.words(s.ClientStream.RecvMsg(m)) }

// callError is a refusal or failure of the signer in words for people.
type callError struct {
	words  string
	status *status.Status
}

func (e *callError) Error() string { return e.words }

// reason is the ErrorInfo reason of a refusal, "" if err is none.
func reason(err error) string {
	var call *callError
	if !errors.As(err, &call) {
		return ""
	}
	return errorInfo(call.status).GetReason()
}

// unanswered adds to the error of an act whose answer was not waited for that it may
// have happened. Other errors stand as they are.
func unanswered(err error, but string) error {
	var call *callError
	if errors.As(err, &call) && (call.status.Code() == codes.Canceled || call.status.Code() == codes.DeadlineExceeded) {
		return fmt.Errorf("%w; %s", err, but)
	}
	return err
}

func errorInfo(st *status.Status) *errdetails.ErrorInfo {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == "signer.pact" {
			return info
		}
	}
	return nil
}

// describe puts a call's error into words. What the signer itself says stands as
// it is; what the connection says is explained.
func describe(err error, s signerContext) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	words := st.Message()
	switch {
	case st.Code() == codes.Unauthenticated:
		words = fmt.Sprintf("the admin token in %s is not accepted at %s: give --token-file another", s.TokenFile, s.Server)
	case errorInfo(st) != nil:
		words = strings.Replace(words, "compromised_kid:", "--compromised:", 1) // the field's name here
	case st.Code() == codes.Unavailable && !strings.Contains(words, "server preface"): // else it speaks, but not gRPC
		words = fmt.Sprintf("cannot reach the signer at %s: is it running, and is that its admin listener? (%s)", s.Server, words)
	case st.Code() == codes.DeadlineExceeded:
		words = fmt.Sprintf("the signer at %s did not answer in time", s.Server)
	case st.Code() == codes.Canceled:
		words = "interrupted"
	case st.Code() == codes.Unavailable || st.Code() == codes.Unknown || st.Code() == codes.Unimplemented || st.Code() == codes.Internal:
		words = fmt.Sprintf("%s does not answer as a signer's admin listener, which by default is port 8789 (%s)", s.Server, words)
	}
	return &callError{words, st}
}

// embeddedDefaults are the admin listener and the admin-token file of a signer
// that was started with no arguments.
func embeddedDefaults() (server, tokenFile string) {
	c := config.Default()
	return "http://" + c.Listeners.Admin.Address, filepath.Join(c.Data, "admin-token")
}
