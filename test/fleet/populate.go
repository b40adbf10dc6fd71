package fleet

import (
	"fmt"
	"net/http"
)

// Audience is what Populate registers.
const (
	Audience = "aud-of-the-provider"
	origin   = "https://provider.example"
)

// Populate registers an audience, makes credentials and enrols devices, over the
// wire.
func (f *Fleet) Populate(t T, credentials, devices int) (callers []*Caller, audience string) {
	t.Helper()
	via := f.Replicas[0]
	f.MustPactctl(t, via, "audiences", "set", origin, Audience)
	for i := range max(credentials, devices) {
		if i < credentials {
			callers = append(callers, f.NewCredential(t, via, fmt.Sprintf("credential-%d", i)))
		}
		if i < devices {
			c := NewDevice(t, fmt.Sprintf("device-%d", i))
			f.Enrol(t, via, c)
			callers = append(callers, c)
		}
	}
	return callers, Audience
}

// Enrol enrols a device and returns its subject.
func (f *Fleet) Enrol(t T, via *Replica, c *Caller) string {
	t.Helper()
	rec := f.Ask(t, via, c, "enroll")
	if rec.Status != http.StatusOK || rec.Problem != "" {
		t.Fatalf("enrol %s: %d %s", c.Name, rec.Status, rec.Problem)
	}
	return rec.Subject
}

// Ask makes one call, outside of any load: sign for the registered audience, status
// or enroll.
func (f *Fleet) Ask(t T, via *Replica, c *Caller, op string) Record {
	t.Helper()
	e := f.endpoint(t, via)
	defer e.close()
	return e.do(request{face: REST, caller: c, op: op, want: Good, audience: Audience})
}
