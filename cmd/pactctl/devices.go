package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// pageSize is how much of a list is asked for at a time.
const pageSize = 500

// newDevicesCmd lists devices and ends them.
func newDevicesCmd(a *app) *cobra.Command {
	cmd := newGroupCmd("devices", "List enrolled devices, and end a device key")
	cmd.GroupID = groupOperator
	cmd.Example = `  pactctl devices list
  pactctl devices show THUMBPRINT
  pactctl devices invalidate THUMBPRINT --reason "lost phone"`
	t := newTarget(cmd)
	t.issuerFlag(cmd)
	cmd.AddCommand(newDevicesListCmd(a, t), newDevicesShowCmd(a, t), newDevicesInvalidateCmd(a, t))
	return cmd
}

func newDevicesListCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all devices of an issuer",
		Example: `  pactctl devices list
  pactctl devices list -o json | jq -r '.devices[].thumbprint'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				all := &signerv1.ListDevicesResponse{}
				for req := (&signerv1.ListDevicesRequest{Issuer: s.issuer, PageSize: pageSize}); ; {
					resp, err := s.ListDevices(ctx, req)
					if err != nil {
						return err
					}
					all.Devices = append(all.Devices, resp.Devices...)
					if req.PageToken = resp.NextPageToken; req.PageToken == "" {
						break
					}
				}
				kills, err := s.KillStatus(ctx, &signerv1.KillStatusRequest{})
				if err != nil {
					return err
				}
				return a.print(messageJSON(all), func(p *printer) { printDevices(p, all.Devices, kills.Entries) })
			})
		},
	}
}

// printDevices writes devices; kills are the entries in force.
func printDevices(p *printer, devices []*signerv1.Device, kills []*signerv1.KillEntry) {
	if len(devices) == 0 {
		p.line("No devices.")
		return
	}
	var rows [][]string
	for _, d := range devices {
		state := d.State
		if d.State == "active" && slices.ContainsFunc(kills, func(e *signerv1.KillEntry) bool {
			s := e.GetScope()
			return s.GetIssuer() == d.Issuer && (s.GetKind() == "device" && s.Value == d.Thumbprint || s.GetKind() == "subject" && s.Value == d.Subject)
		}) {
			state = "stopped" // by the kill switch
		}
		rows = append(rows, []string{d.Thumbprint, state, or(p.ago(when(d.EnrolledAt)), "never"), or(p.ago(when(d.LastSignedAt)), "never")})
	}
	p.table([]string{"THUMBPRINT", "STATE", "ENROLLED", "LAST SIGNED"}, rows)
}

func newDevicesShowCmd(a *app, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "show THUMBPRINT",
		Short: "Show one device",
		Example: `  pactctl devices show hkwVu1n…
  pactctl devices show hkwVu1n… -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
				d, err := s.GetDevice(ctx, &signerv1.GetDeviceRequest{Issuer: s.issuer, Thumbprint: args[0]})
				if err != nil {
					return err
				}
				return a.print(messageJSON(d), func(p *printer) { printDevice(p, d) })
			})
		},
	}
}

func printDevice(p *printer, d *signerv1.Device) {
	p.fields(
		"thumbprint", d.Thumbprint,
		"issuer", d.Issuer,
		"subject", d.Subject,
		"state", d.State,
		"enrolled", or(p.at(when(d.EnrolledAt)), "never"),
		"last signed", or(p.at(when(d.LastSignedAt)), "never"),
		"invalidated", p.at(when(d.InvalidatedAt)),
		"reason", d.Reason,
	)
}

func newDevicesInvalidateCmd(a *app, t *target) *cobra.Command {
	var req signerv1.InvalidateDeviceRequest
	cmd := &cobra.Command{
		Use:   "invalidate THUMBPRINT",
		Short: "End a device key for good",
		Long: `End a device key for good: it can neither sign nor enrol again. A key that never
enrolled can be ended too.`,
		Example: `  pactctl devices invalidate hkwVu1n… --reason "lost phone"
  pactctl devices invalidate hkwVu1n… --reason "lost phone" --yes`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit log")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.operate(cmd.Context(), t, func(ctx context.Context, s *operator) error {
			req.Issuer, req.Thumbprint = s.issuer, args[0]
			if err := a.confirm(ctx, fmt.Sprintf("End device key %s for good?", args[0])); err != nil {
				return err
			}
			d, err := s.InvalidateDevice(ctx, &req)
			if err != nil {
				return err
			}
			return a.print(messageJSON(d), func(p *printer) {
				p.say(0, "Device key %s can neither sign nor enrol again.", d.Thumbprint)
			})
		})
	}
	return cmd
}
