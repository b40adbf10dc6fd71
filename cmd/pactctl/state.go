package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
	"github.com/pactsigner/pactsigner/signer"
)

// newStateCmd looks at the store as a whole, moves it, and gives it up.
func newStateCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("state", "Look at the signer's store, move it, or give it up")
	cmd.GroupID = groupOperator
	cmd.Long = `The signer's store holds devices, credentials, audiences, enrolment tokens, the
kill switch and the audit log. Custody, which holds the keys, knows which store
is the right one and what its audit log must have; if the store is not like
that, the signer answers 503 to everything, and "state status" says what to do.

An export moves a store: from one host's file into a fleet's Redis, or into a
Redis after a loss. Used proofs (four minutes), rate limits and replicas are not
in it.`
	cmd.Example = `  pactctl state status
  pactctl state export state.ndjson
  pactctl state import state.ndjson
  pactctl state accept-loss --store ID --reason "Redis and its backup are gone"
  pactctl state open-enrolment`
	t := newTarget(cmd)
	cmd.AddCommand(newStateStatusCmd(a, t), newStateExportCmd(a, t), newStateImportCmd(a, t), newStateAcceptLossCmd(a, t), newStateOpenEnrolmentCmd(a, t))
	return cmd
}

func newStateStatusCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show whether the store is the right one, and what to do if not",
		Long: `Show whether the store is the one that custody knows, and what to do if not.

Conditions: ok; lost (wiped, or another one); foreign (another deployment's, or
from before its loss was accepted); rolled_back (older than custody knows it);
uninitialised (run signer init); unknown (custody or the store is away). Exit
code 1 in all but ok.`,
		Example: `  pactctl state status
  pactctl state status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				st, err := s.GetState(ctx, &signerv1.GetStateRequest{})
				if err != nil {
					return err
				}
				if err := a.print(messageJSON(st), func(p *printer) { printState(p, st) }); err != nil {
					return err
				}
				switch signer.StateCondition(st.Condition) {
				case signer.StateOK:
				case signer.StateUnknown:
					return errors.New("the store's condition is unknown: custody or the store is away")
				default:
					return fmt.Errorf("the store's condition is %s: the signer answers 503", st.Condition)
				}
				return nil
			})
		},
	}
}

func printState(p *printer, s *signerv1.StoreState) {
	found := ""
	if s.Found != s.Store {
		found = or(s.Found, "no id")
	}
	enrolment := ""
	if s.EnrolmentClosed {
		enrolment = "closed, since the store was lost or went back"
	}
	p.fields(
		"condition", s.Condition,
		"kind", s.Kind,
		"store", or(s.Store, "none yet"),
		"found", found,
		"audit log", headWords(s.StoreHead),
		"in custody", headWords(s.CustodyHead),
		"enrolment", enrolment,
	)
	for _, text := range []string{s.Problem, s.Remedy} {
		if text != "" {
			p.line("")
			p.paragraph(text, 0)
		}
	}
	if s.EnrolmentClosed && s.Problem == "" {
		p.line("")
		p.paragraph("Who was invalidated after the store's last export or backup is not known any more. When you have invalidated those again: pactctl state open-enrolment.", 0)
	}
}

func headWords(h *signerv1.AuditHead) string {
	if h.GetSeq() == 0 {
		return ""
	}
	return fmt.Sprintf("up to entry %d", h.Seq)
}

// personalData is said wherever a state file is made.
const personalData = "The file holds no secret, since of secrets the store keeps hashes, but personal data: subjects, which device signed when, and who did what. Keep it as you keep the store, and delete it when it is not needed."

func newStateExportCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "export FILE",
		Short: "Write everything that the store holds to a file",
		Long: `Write everything that the store holds to a new file that only you can read, or
with - to a pipe. A file that exists is not written over. What arrives is
checked to the last line; of an export that fails no file is left.

` + strings.Join(wrap(personalData, columns), "\n"),
		Example: `  pactctl state export state.ndjson
  pactctl state export - | age -r age1… > state.ndjson.age`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			toPipe := args[0] == "-"
			switch {
			case toPipe && a.width > 0:
				return usagef("- writes to stdout, which is a terminal: say a FILE, or send it through a pipe")
			case toPipe && a.output == "json":
				return usagef("-o json and - both write to stdout: say a FILE")
			}
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				if toPipe {
					sum, err := receiveState(ctx, a, s, a.stdout)
					if err == nil {
						a.note("Exported %s of store %s, SHA-256 %s.", plural(sum.Records, "record"), sum.Store, sum.SHA256)
						a.note(personalData)
					}
					return err
				}
				sum, err := exportTo(ctx, a, s, args[0])
				if err != nil {
					return err
				}
				content := contentMessage(sum)
				return a.print(append(object{{"file", args[0]}}, messageJSON(content)...), func(p *printer) {
					p.say(0, "Exported %s to %s.", plural(sum.Records, "record"), args[0])
					printContent(p, content)
					p.line("")
					p.paragraph(personalData, 0)
				})
			})
		},
	}
}

// exportTo writes a new file, of which nothing is left after an error.
func exportTo(ctx context.Context, a *app, s *operator, path string) (sum signer.StateSummary, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return sum, fmt.Errorf("%s exists and is not written over: choose another name", path)
	}
	if err != nil {
		return sum, fmt.Errorf("make the file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	sum, err = receiveState(ctx, a, s, f)
	if err == nil {
		err = f.Sync()
	}
	return sum, errors.Join(err, f.Close())
}

// receiveState writes the signer's export and checks it on the way.
func receiveState(ctx context.Context, a *app, s *operator, w io.Writer) (signer.StateSummary, error) {
	stream, err := s.ExportState(ctx, &signerv1.ExportStateRequest{})
	if err != nil {
		return signer.StateSummary{}, err
	}
	show := newAmount(a, "Taking the records out")
	defer show.close()
	sum, err := signer.CheckState(io.TeeReader(&stateStream{stream.Recv, nil}, io.MultiWriter(w, show)))
	var file *signer.StateFileError
	if errors.As(err, &file) {
		err = fmt.Errorf("what the signer sent is not a whole state file, are pactctl and the signer of one version? %w", err)
	}
	return sum, err
}

// stateStream reads an export.
type stateStream struct {
	recv func() (*signerv1.ExportStateResponse, error)
	data []byte
}

// Read implements io.Reader.
func (r *stateStream) Read(b []byte) (int, error) {
	for len(r.data) == 0 {
		m, err := r.recv()
		if err != nil {
			return 0, err
		}
		r.data = m.Data
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}

// amount tells how much has gone by.
type amount struct {
	*waiting
	what string
	n    int64
}

func newAmount(a *app, what string) *amount {
	w := &amount{waiting: newWaiting(a), what: what}
	w.set(what, time.Time{}, "")
	return w
}

// Write implements io.Writer.
func (w *amount) Write(b []byte) (int, error) {
	const step = 1 << 20
	before := w.n / step
	if w.n += int64(len(b)); w.n/step != before {
		w.set(fmt.Sprintf("%s: %d MiB", w.what, w.n/step), time.Time{}, "")
	}
	return len(b), nil
}

func contentMessage(s signer.StateSummary) *signerv1.StateContent {
	return &signerv1.StateContent{
		Store: s.Store, ExportedAt: timestamppb.New(s.ExportedAt), Records: s.Records, Sha256: s.SHA256,
		Devices: s.Devices, Credentials: s.Credentials, EnrollmentTokens: s.EnrollmentTokens,
		Audiences: s.Audiences, Kills: s.Kills, AuditEntries: s.AuditEntries,
	}
}

func printContent(p *printer, c *signerv1.StateContent) {
	p.fields(
		"store", c.Store,
		"exported", p.at(when(c.ExportedAt)),
		"devices", fmt.Sprint(c.Devices),
		"credentials", fmt.Sprint(c.Credentials),
		"enrolment tokens", fmt.Sprint(c.EnrollmentTokens),
		"audiences", fmt.Sprint(c.Audiences),
		"kills", fmt.Sprint(c.Kills),
		"audit entries", fmt.Sprint(c.AuditEntries),
		"sha256", c.Sha256,
	)
}

func newStateImportCmd(a *app, t *target) *cobra.Command {
	var accept string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Put an export into the store",
		Long: `Put an export into the signer's store. The file is checked here, and as a whole
by the signer before it writes anything; a file that was cut off, changed or
made for other issuers is refused. Nothing of it is served before all of it is
there, the signer answers 503 until then, and an import that was interrupted can
be repeated.

Without --accept-loss the store must hold no record, and the file must come from
the store that custody knows, and have all that custody recorded of its audit
log: then nothing is lost. With --accept-loss and the id that state status shows
the file takes the place of what the store holds: that is removed, but for the
kill switch, which is merged. What the store knew and the file does not is
forgotten, and enrolment closes if that can be an invalidation. The file may be
another store's then, as when a signer moves to new keys.

An embedded signer takes an import only before any other act: for it make the
store anew, with signer init --accept-lost-store.

It asks first; in a script, say --yes.`,
		Example: `  pactctl state import state.ndjson
  pactctl state import state.ndjson --accept-loss ID    # ID: see state status
  age -d state.ndjson.age | pactctl state import - --yes`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&accept, "accept-loss", "", "give up what the store of this `ID` holds")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "-" && !a.yes {
			return usagef("- reads the file from stdin, where nobody can answer then: say --yes, or a FILE")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			in, content := a.stdin, (*signerv1.StateContent)(nil)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				if content, err = checkStateFile(a, f); err != nil {
					return err
				}
				in = f
			}
			return importState(ctx, a, s, in, content, accept)
		})
	}
	return cmd
}

// checkStateFile reads a file to its end, and goes back to its beginning.
func checkStateFile(a *app, f *os.File) (*signerv1.StateContent, error) {
	show := newAmount(a, "Checking the file")
	sum, err := signer.CheckState(io.TeeReader(f, show))
	show.close()
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return contentMessage(sum), nil
}

// importState asks, and sends the file. content is what is in it, nil if that is not
// known yet.
func importState(ctx context.Context, a *app, s *operator, in io.Reader, content *signerv1.StateContent, accept string) error {
	st, err := s.GetState(ctx, &signerv1.GetStateRequest{})
	if err != nil {
		return err
	}
	if content != nil && !a.yes {
		p := a.aside()
		printContent(p, content)
		p.line("")
		if accept != "" {
			p.paragraph(fmt.Sprintf("What store %s knows and the file does not is forgotten: credentials, invalidations, audiences, audit entries. Proofs that devices have used within the last four minutes could be used again.", accept), 0)
		}
	}
	question := fmt.Sprintf("Put these records into the signer's %s store?", st.Kind)
	if accept != "" {
		question = fmt.Sprintf("Give up store %s, and put these records in its place?", accept)
	}
	if err := a.confirm(ctx, question); err != nil {
		return err
	}
	resp, err := sendState(ctx, a, s, in, accept)
	if err != nil {
		return unanswered(err, "the import may have ended all the same: see pactctl state status, and repeat it if not")
	}
	if content != nil && resp.Content.GetSha256() != content.Sha256 {
		return fmt.Errorf("the file was changed while it was sent: it had SHA-256 %s, and %s was imported", content.Sha256, resp.Content.GetSha256())
	}
	return a.print(messageJSON(resp), func(p *printer) {
		p.say(0, "Imported %s. The store is %s from now on.", plural(resp.Content.GetRecords()-resp.LeftOut, "record"), resp.Store)
		printContent(p, resp.Content)
		if resp.LeftOut > 0 {
			p.line("")
			p.paragraph(fmt.Sprintf("Left out: %s of issuers that are retired.", plural(resp.LeftOut, "record")), 0)
		}
		if resp.EnrolmentClosed {
			p.line("")
			p.paragraph("Enrolment is closed: the file may lack invalidations. Invalidate those devices again, then: pactctl state open-enrolment.", 0)
		}
	})
}

// stateChunk is how much of a file goes in one message.
const stateChunk = 32 << 10

// sendState sends a file and waits until it is imported.
func sendState(ctx context.Context, a *app, s *operator, in io.Reader, accept string) (*signerv1.ImportStateResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.ImportState(ctx)
	if err != nil {
		return nil, err
	}
	show := newAmount(a, "Sending the records")
	defer show.close()
	r, buf := io.TeeReader(in, show), make([]byte, stateChunk)
	for {
		n, err := io.ReadFull(r, buf)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return nil, fmt.Errorf("read the file: %w", err)
		}
		if n > 0 {
			if err := stream.Send(&signerv1.ImportStateRequest{AcceptStore: accept, Data: buf[:n]}); err != nil {
				break // the answer says why
			}
			accept = "" // is said once
		}
		if end {
			break
		}
	}
	show.set("Waiting until the signer has written the records", time.Time{}, "The records are sent: waiting until the signer has written them.")
	return stream.CloseAndRecv()
}

func newStateAcceptLossCmd(a *app, t *target) *cobra.Command {
	var req signerv1.AcceptLossRequest
	cmd := &cobra.Command{
		Use:   "accept-loss",
		Short: "Give up a store that is lost or went back",
		Long: `Give up a store that is lost, foreign or rolled back, and for which there is no
backup or export. Name it by the id that "state status" shows.

In place of a lost store an empty one goes on: credentials, invalidations,
audiences, enrolment tokens, used proofs and the audit log are forgotten, and
where only a part was lost the rest is removed. One that went back, or was given
up before, stays as it is: what was done since is undone. In any case enrolment
closes until "state open-enrolment", devices that enrol again get the same
subject, and the kill switch comes back from custody. A store that is found
later is refused, and a Redis with the mark of another deployment is never
taken.

It asks first; in a script, say --yes.`,
		Example: `  pactctl state status
  pactctl state accept-loss --store ID --reason "Redis and its backup are gone"`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&req.Store, "store", "", "`ID` of the store to give up, as state status shows it (required)")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case req.Store == "":
			return usagef("--store is required: pactctl state status shows the id")
		case strings.TrimSpace(req.Reason) == "":
			return usagef("--reason is required: it goes to the audit log")
		}
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			return acceptLoss(ctx, a, s, &req)
		})
	}
	return cmd
}

// acceptLoss shows what is forgotten, asks, and gives the store up.
func acceptLoss(ctx context.Context, a *app, s *operator, req *signerv1.AcceptLossRequest) error {
	st, err := s.GetState(ctx, &signerv1.GetStateRequest{})
	if err != nil {
		return err
	}
	if !a.yes {
		a.aside().paragraph(lossWords(st), 0)
	}
	if err := a.confirm(ctx, fmt.Sprintf("Give up store %s for good?", req.Store)); err != nil {
		return err
	}
	after, err := s.AcceptLoss(ctx, req)
	if err != nil {
		return unanswered(err, "it may be given up all the same: see pactctl state status")
	}
	return a.print(messageJSON(after), func(p *printer) {
		p.say(0, "Store %s is given up. The store is %s from now on.", req.Store, after.Store)
		printState(p, after)
	})
}

// lossWords says what a loss means.
func lossWords(s *signerv1.StoreState) string {
	if s.Condition == string(signer.StateRolledBack) {
		return fmt.Sprintf("The store stays as it is, and goes up to audit entry %d of %d. What was done after that is undone: whose credential was revoked is accepted, who was invalidated can sign, audiences are as they were. Enrolment closes until pactctl state open-enrolment. Proofs that devices have used since could be used again.",
			s.StoreHead.GetSeq(), s.CustodyHead.GetSeq())
	}
	if s.Condition == string(signer.StateForeign) {
		return "The store that is configured now takes its place as it is, if it was this signer's before. What was done since it was given up is undone: whose credential was revoked is accepted, who was invalidated can sign, audiences are as they were. Enrolment closes until pactctl state open-enrolment. Proofs that devices have used since could be used again."
	}
	return "An empty store takes its place; what is left of it is removed. Forgotten are: credentials, whose holders are refused until you create new ones; invalidations, so enrolment closes until pactctl state open-enrolment; audiences, which nobody can sign for until you set them again; enrolment tokens; the audit log. Proofs that devices have used within the last four minutes could be used again. Devices must enrol again and get the same subjects; the kill switch comes back from custody."
}

func newStateOpenEnrolmentCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "open-enrolment",
		Short: "Let devices enrol again after a loss",
		Long: `Let devices enrol again, in the mode that is configured, after a loss of the
store was accepted. Before that, invalidate again the devices that were
invalidated: the store has forgotten them, and they could enrol.`,
		Example: `  pactctl devices invalidate THUMBPRINT --reason "was lost before"
  pactctl state open-enrolment`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				before, err := s.GetState(ctx, &signerv1.GetStateRequest{})
				if err != nil {
					return err
				}
				st, err := s.OpenEnrolment(ctx, &signerv1.OpenEnrolmentRequest{})
				if err != nil {
					return err
				}
				return a.print(messageJSON(st), func(p *printer) {
					if before.EnrolmentClosed {
						p.line("Enrolment was closed, and is as configured again.")
					} else {
						p.line("Enrolment was not closed: it is as configured, and nothing was changed.")
					}
				})
			})
		},
	}
}
