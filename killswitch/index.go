package killswitch

// Target is what a request touches. An empty field is not asked about; every
// field but Issuer belongs to Issuer, which must then be set.
type Target struct {
	Issuer, Audience, Subject, Device, Credential string
}

// name is a value within an issuer.
type name struct{ issuer, value string }

// index answers for the live entries of one state. Immutable; errors are made
// with it, so that asking allocates nothing.
type index struct {
	all                                       *KilledError
	issuers                                   map[string]*KilledError
	subjects, devices, credentials, audiences map[name]*KilledError

	live map[Kind]int // how many entries there are
}

func newIndex(s State) *index {
	x := &index{
		issuers:     make(map[string]*KilledError),
		subjects:    make(map[name]*KilledError),
		devices:     make(map[name]*KilledError),
		credentials: make(map[name]*KilledError),
		audiences:   make(map[name]*KilledError),
		live:        make(map[Kind]int),
	}
	for _, e := range Merge(s, State{}).Live() {
		k := &KilledError{Scope: e.Scope, Entry: e.ID}
		n := name{e.Scope.Issuer, e.Scope.Value}
		kind := e.Scope.Kind
		switch kind {
		case Issuer:
			first(x.issuers, e.Scope.Issuer, k)
		case Subject:
			first(x.subjects, n, k)
		case Device:
			first(x.devices, n, k)
		case Credential:
			first(x.credentials, n, k)
		case Audience:
			first(x.audiences, n, k)
		default: // All, and whatever this version does not understand
			kind = All
			if x.all == nil {
				x.all = k
			}
		}
		x.live[kind]++
	}
	return x
}

// first keeps the oldest entry of a scope.
func first[K comparable](m map[K]*KilledError, key K, k *KilledError) {
	if m[key] == nil {
		m[key] = k
	}
}

// killed returns the widest live entry that covers t, or nil.
func (x *index) killed(t Target) *KilledError {
	if x.all != nil {
		return x.all
	}
	if t.Issuer == "" {
		return nil
	}
	if k := x.issuers[t.Issuer]; k != nil {
		return k
	}
	for _, q := range [...]struct {
		m     map[name]*KilledError
		value string
	}{
		{x.subjects, t.Subject},
		{x.devices, t.Device},
		{x.credentials, t.Credential},
		{x.audiences, t.Audience},
	} {
		if q.value == "" || len(q.m) == 0 {
			continue
		}
		if k := q.m[name{t.Issuer, q.value}]; k != nil {
			return k
		}
	}
	return nil
}
