package signer

import (
	"context"
	"errors"

	signerv1 "github.com/pactsigner/pactsigner/proto/pact/signer/v1"
)

// ListDevices implements signerv1.AdminServiceServer.
func (a *Admin) ListDevices(ctx context.Context, req *signerv1.ListDevicesRequest) (*signerv1.ListDevicesResponse, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	page, err := adminPageOf(req.PageSize, req.PageToken)
	if err != nil {
		return nil, err
	}
	list, next, err := a.cfg.Store.Devices(ctx, i.URL, page)
	if err != nil {
		return nil, err
	}
	resp := &signerv1.ListDevicesResponse{NextPageToken: next}
	for _, d := range list {
		resp.Devices = append(resp.Devices, deviceMessage(d))
	}
	return resp, nil
}

// GetDevice implements signerv1.AdminServiceServer.
func (a *Admin) GetDevice(ctx context.Context, req *signerv1.GetDeviceRequest) (*signerv1.Device, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	if err := adminThumbprint("thumbprint", req.Thumbprint); err != nil {
		return nil, err
	}
	d, err := a.cfg.Store.Device(ctx, i.URL, req.Thumbprint)
	if errors.Is(err, ErrNotFound) {
		return nil, adminNotFound("issuer %s has no device %s", i.URL, req.Thumbprint)
	}
	if err != nil {
		return nil, err
	}
	return deviceMessage(d), nil
}

// InvalidateDevice implements signerv1.AdminServiceServer. A thumbprint that never
// enrolled is recorded, and then cannot.
func (a *Admin) InvalidateDevice(ctx context.Context, req *signerv1.InvalidateDeviceRequest) (*signerv1.Device, error) {
	i, err := a.issuer(req.Issuer)
	if err != nil {
		return nil, err
	}
	if err := adminThumbprint("thumbprint", req.Thumbprint); err != nil {
		return nil, err
	}
	if err := adminText("reason", req.Reason, adminMaxReason, false); err != nil {
		return nil, err
	}
	d, err := a.cfg.Store.Invalidate(ctx, i.URL, req.Thumbprint, req.Reason, a.entry(ctx, "device.invalidate", i.URL, req.Thumbprint, req.Reason))
	if err := a.stands(ctx, err); err != nil {
		return nil, err
	}
	return deviceMessage(d), nil
}

func deviceMessage(d Device) *signerv1.Device {
	m := &signerv1.Device{
		Issuer: d.Issuer, Thumbprint: d.Thumbprint, Subject: d.Subject, State: "active",
		EnrolledAt: adminStamp(d.EnrolledAt), LastSignedAt: adminStamp(d.LastSignedAt),
		InvalidatedAt: adminStamp(d.InvalidatedAt), Reason: d.Reason,
	}
	if !d.InvalidatedAt.IsZero() {
		m.State = "invalidated"
	}
	return m
}
