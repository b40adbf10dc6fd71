package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
)

// newEnrollCmd makes a profile known to a signer.
func newEnrollCmd(a *app) *cobra.Command {
	var req agent.EnrollRequest
	var tokenFile, credentialFile string
	cmd := &cobra.Command{
		Use:   "enroll --signer URL",
		Short: "Enrol with a signer, which then signs who you are",
		Long: `Enrol with a signer, which then signs who you are.

A device key is made in the profile, kept there encrypted, and shown to the
signer. Enrolling again with the same signer keeps key and subject. A signer
that issues credentials instead takes --credential-file.

A signer on this machine sets the profile's development mode, in which
businesses on this machine are allowed too; any other ends it.`,
		Example: `  pactctl enroll --signer https://pa.example.com
  pactctl enroll --signer https://pa.example.com --token-file enrolment.token
  pactctl enroll --signer http://127.0.0.1:8787 -o json`,
		Args: cobra.NoArgs,
	}
	p := newProfile(a, cmd)
	p.makes = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch u := req.SignerURL; {
		case u == "":
			return usagef("--signer URL is required: %s", signerURLHint)
		case !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "https://"):
			return usagef("--signer %q has no scheme: say https://…, or http://… for a signer on this machine", u)
		}
		for _, f := range []struct {
			flag, path string
			secret     *agent.Secret
		}{{"--token-file", tokenFile, &req.Token}, {"--credential-file", credentialFile, &req.Credential}} {
			s, err := p.readSecret(f.flag, f.path)
			if err != nil {
				return err
			}
			*f.secret = s
		}
		return p.with(cmd.Context(), func(ctx context.Context, ag personal, c agent.Caller) error {
			v, err := ag.Enroll(ctx, c, req)
			if err != nil {
				return enrollHint(refused(err), agent.ReasonOf(err))
			}
			return a.print(v, func(pr *printer) {
				pr.line("Enrolled with %s.", v.SignerURL)
				printIdentity(pr, v)
				if v.Deployment == agent.DeploymentDevelopment {
					pr.say(0, "Development mode is on in this profile, because the signer is on this machine: businesses on this machine are allowed.")
				} else if !v.Development {
					pr.say(0, "Development mode is off in this profile: businesses on this machine are not allowed.")
				}
			})
		})
	}
	f := cmd.Flags()
	f.StringVar(&req.SignerURL, "signer", "", "`URL` of the signer")
	f.StringVar(&req.Issuer, "issuer", "", "issuer `URL` that the signer must be for")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with an enrolment token, - for stdin")
	f.StringVar(&credentialFile, "credential-file", "", "`FILE` with a credential to use instead of a device key, - for stdin")
	return cmd
}

const signerURLHint = "the one that signer serve prints as Public, by default http://127.0.0.1:8787"

// enrollHint adds to an error what is likely to mend it.
func enrollHint(err error, reason string) error {
	switch {
	case reason == agent.ReasonCredentialRejected:
		return fmt.Errorf("%w; does it want an enrolment token (--token-file), and is that its public URL (%s)?", err, signerURLHint)
	case reason != agent.ReasonSignerUnavailable:
		return err
	case strings.Contains(err.Error(), "connection refused"):
		return fmt.Errorf("%w; nothing listens there: start a signer with signer serve, and give its URL (%s)", err, signerURLHint)
	}
	return fmt.Errorf("%w; is that the signer's URL (%s)?", err, signerURLHint)
}

// readSecret reads a secret from a file: it never is an argument, which others
// on the machine could see.
func (p *profile) readSecret(flag, path string) (agent.Secret, error) {
	var data []byte
	var err error
	switch path {
	case "":
		return "", nil
	case "-":
		data, err = io.ReadAll(io.LimitReader(p.app.stdin, 1<<16))
	default:
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	s := strings.TrimSpace(string(data))
	if s == "" {
		return "", fmt.Errorf("%s %s is empty", flag, path)
	}
	return agent.Secret(s), nil
}

func printIdentity(p *printer, v agent.IdentityView) {
	p.fields(
		"issuer", v.Issuer,
		"subject", v.Subject,
		"signer", v.SignerURL,
		"known by", v.Mode,
		"thumbprint", v.Thumbprint,
		"deployment", string(v.Deployment),
		"set up by", byAnother(v.By),
	)
}
