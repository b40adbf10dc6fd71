package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/internal/audit"
	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// newAuditCmd reads and verifies the audit log.
func newAuditCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("audit", "Read and verify the audit log")
	cmd.GroupID = groupOperator
	cmd.Example = `  pactctl audit list
  pactctl audit list -o json > audit.json
  pactctl audit verify --file audit.json`
	t := newTarget(cmd)
	cmd.AddCommand(newAuditListCmd(a, t), newAuditVerifyCmd(a, t))
	return cmd
}

func newAuditListCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the whole audit log, oldest first",
		Long: `List the whole audit log, oldest first. With -o json it is an export that
pactctl audit verify --file can check anywhere.`,
		Example: `  pactctl audit list
  pactctl audit list -o json > audit.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				all := &signerv1.ListAuditResponse{}
				for req := (&signerv1.ListAuditRequest{PageSize: pageSize}); ; {
					resp, err := s.ListAudit(ctx, req)
					if err != nil {
						return err
					}
					all.Entries = append(all.Entries, resp.Entries...)
					if req.PageToken = resp.NextPageToken; req.PageToken == "" {
						break
					}
				}
				return a.print(messageJSON(all), func(p *printer) { printAudit(p, all.Entries) })
			})
		},
	}
}

// printAudit writes several lines an entry, so that ids stand whole.
func printAudit(p *printer, entries []*signerv1.AuditEntry) {
	for _, e := range entries {
		p.line("%5d  %s  %s", e.Seq, p.clock(when(e.Time), toSecond), e.Action)
		p.line("       by %s", e.Actor)
		p.say(7, "%s", e.Target)
		if !strings.HasSuffix(e.Target, " of "+e.Issuer) { // as a switch's target names it
			p.say(7, "%s", e.Issuer)
		}
		for _, k := range slices.Sorted(maps.Keys(e.Detail)) {
			p.say(7, "%s: %s", k, e.Detail[k])
		}
		p.paragraph(e.Reason, 7)
	}
	if len(entries) == 0 {
		p.line("The audit log is empty.")
	}
}

func newAuditVerifyCmd(a *app, t *target) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify the hash chain of the whole audit log",
		Long: `Verify the hash chain of the whole audit log: by the signer, or with --file of
an export, here and without a signer. Exit code 1 if the chain is broken.

An export that was cut off at its end still verifies: compare the head with
another record of it.`,
		Example: `  pactctl audit verify
  pactctl audit verify --file audit.json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&file, "file", "", "verify this export (- is stdin) instead of asking the signer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file != "" {
			resp, err := verifyExport(a.stdin, file)
			if err != nil {
				return err
			}
			return a.printVerified(resp)
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			resp, err := s.VerifyAudit(ctx, &signerv1.VerifyAuditRequest{})
			if err != nil {
				return err
			}
			return a.printVerified(resp)
		})
	}
	return cmd
}

// printVerified prints the verdict; a broken chain is an error too.
func (a *app) printVerified(r *signerv1.VerifyAuditResponse) error {
	err := a.print(messageJSON(r), func(p *printer) {
		if r.Ok {
			p.line("The audit log is whole: %s.", entries(r.Entries))
			p.fields("head", r.Head)
		}
	})
	if err == nil && !r.Ok {
		err = fmt.Errorf("the audit log does not verify: %s", r.Problem)
	}
	return err
}

func entries(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// verifyExport checks what `audit list -o json` wrote.
func verifyExport(stdin io.Reader, path string) (*signerv1.VerifyAuditResponse, error) {
	r := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer f.Close()
		r = f
	}
	var v audit.Verifier
	var bad *signerv1.VerifyAuditResponse
	err := readExport(r, func(e audit.Entry) {
		if bad != nil {
			return
		}
		if err := v.Add(e); err != nil {
			bad = &signerv1.VerifyAuditResponse{Entries: v.Entries, Head: v.Head, FirstBad: v.Entries + 1, Problem: err.Error()}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("--file %s is not an export of pactctl audit list -o json: %w", path, err)
	}
	if bad != nil {
		return bad, nil
	}
	return &signerv1.VerifyAuditResponse{Ok: true, Entries: v.Entries, Head: v.Head}, nil
}

// readExport reads {"entries": [...]} entry by entry, however long.
func readExport(r io.Reader, each func(audit.Entry)) error {
	dec := jsontext.NewDecoder(bufio.NewReader(r))
	for _, want := range []jsontext.Kind{'{', '"', '['} {
		t, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if t.Kind() != want || want == '"' && t.String() != "entries" {
			return errors.New(`it does not begin with {"entries": [`)
		}
	}
	for dec.PeekKind() != ']' {
		var e audit.Entry
		if err := json.UnmarshalDecode(dec, &e, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		each(e)
	}
	for range 2 { // ] and }
		if _, err := dec.ReadToken(); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the log")
	}
	return nil
}
