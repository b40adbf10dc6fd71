package signer_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pactsigner/pactsigner/signer"
)

// headerCarries reports whether both faces deliver s as it is at the end of a
// header's value: printable ASCII (gRPC's rule), no space around it.
func headerCarries(s string) bool {
	return strings.Trim(s, " ") == s && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// The whole service gives the vectors' verdicts on both faces, each in a world
// where nothing was used up; and what is accepted once is not accepted twice.
func TestServiceAssertionVectors(t *testing.T) {
	for i, dir := range append([]string{"testdata"}, filepath.SplitList(os.Getenv("PACT_VECTORS"))...) {
		data, err := os.ReadFile(filepath.Join(dir, "assertions.json"))
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Given struct {
				Endpoint string
				Enrolled []struct{ Kid, X, Y string }
				Now      signer.Seconds
			}
			Cases []struct{ Name, Assertion, Want string }
		}
		if err := json.Unmarshal(data, &file); err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Cases {
			t.Run(filepath.Base(dir)+"/"+c.Name, func(t *testing.T) {
				if !headerCarries(c.Assertion) {
					if c.Want != "unauthorized" {
						t.Errorf("want %q for what no header can carry", c.Want)
					}
					return
				}
				for _, face := range []string{"rest", "grpc"} {
					w := newContractWorld(t, func(cfg *worldConfig) {
						cfg.start = file.Given.Now.Time()
						cfg.issuers[0].URL = strings.TrimSuffix(file.Given.Endpoint, "/pact/sign")
					})
					for _, k := range file.Given.Enrolled {
						w.enrolPoint(k.Kid, k.X, k.Y)
					}
					call := func() reply { return w.faces()[face]("/pact/sign", goodSign, "PACT-Device "+c.Assertion) }
					if signer.NamesReplay(c.Name) && c.Want == "unauthorized" {
						if r := call(); r.status != http.StatusOK {
							t.Errorf("%s, the first use: %+v", face, r)
						}
					}
					r := call()
					switch c.Want {
					case "ok":
						if r.status != http.StatusOK {
							t.Errorf("%s: %+v", face, r)
						}
					case "unauthorized":
						r.refused(t, http.StatusUnauthorized, "unauthorized")
					default:
						t.Errorf("want %q: not a verdict", c.Want)
					}
					call().refused(t, http.StatusUnauthorized, "unauthorized")
				}
			})
		}
	}
}

// enrolPoint enrols a key of which only the public half is known.
func (w *contractWorld) enrolPoint(thumbprint, x, y string) {
	w.t.Helper()
	bx, errX := base64.RawURLEncoding.DecodeString(x)
	by, errY := base64.RawURLEncoding.DecodeString(y)
	epoch, err := w.guard.Check(killTarget(w.issuer))
	if err := errors.Join(errX, errY, err); err != nil {
		w.t.Fatal(err)
	}
	d := signer.Device{Issuer: w.issuer, Thumbprint: thumbprint, Subject: "pa_" + thumbprint, Point: append(bx, by...)}
	if _, err := w.store.Enroll(w.t.Context(), signer.Enrolment{Device: d, Epoch: epoch}); err != nil {
		w.t.Fatal(err)
	}
}
