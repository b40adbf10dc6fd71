package killswitch

import "time"

// Params are the switch's durations. All replicas and operators of a
// deployment must use the same.
type Params struct {
	// Permit is how long a replica may sign on one answer of the store, counted
	// from before it asked.
	Permit time.Duration
	// Poll is the pause between two beats of a replica.
	Poll time.Duration
	// Call bounds one call of a replica to the store.
	Call time.Duration
	// Custody bounds one load or save of the high-water record, and so what a
	// kill can lose to a custody that does not answer.
	Custody time.Duration
	// Compare is the pause between two looks of a replica at what custody knows.
	Compare time.Duration
	// ClockJump is how much a replica's wall clock may move against its
	// monotonic clock during a permit; beyond it the permit is void.
	ClockJump time.Duration
	// ClockWarn is how far a replica's clock may be off the store's before it
	// is not ready, and ClockStop before it gets no permit.
	ClockWarn, ClockStop time.Duration
	// Registered is how long after its last beat a replica still counts as
	// registered.
	Registered time.Duration
	// BarrierSlack is the part of Permit that a barrier waits on top of it, for
	// clocks that do not run at the same rate.
	BarrierSlack float64
	// BarrierPoll is the pause between two looks at the replicas' reports.
	BarrierPoll time.Duration
}

// Defaults returns the durations of the product.
func Defaults() Params {
	return Params{
		Permit:       3 * time.Second,
		Poll:         time.Second,
		Call:         time.Second,
		Custody:      time.Second,
		Compare:      30 * time.Second,
		ClockJump:    time.Second,
		ClockWarn:    5 * time.Second,
		ClockStop:    20 * time.Second,
		Registered:   10 * time.Second,
		BarrierSlack: 0.05,
		BarrierPoll:  20 * time.Millisecond,
	}
}

// Scaled returns p with the pace of permits and barriers divided by n, for
// demonstrations and tests. Poll stays at 250 ms or more and the others in
// proportion: a process that waits half a second for a busy machine keeps its
// permit. Bounds on calls and clocks stay as they are.
func (p Params) Scaled(n float64) Params {
	const floor = 250 * time.Millisecond
	n = min(n, float64(p.Poll)/float64(floor))
	if n <= 1 {
		return p
	}
	for _, d := range []*time.Duration{&p.Permit, &p.Poll, &p.Registered} {
		*d = time.Duration(float64(*d) / n)
	}
	return p
}

// Bound is how long after a kill was written no permit from before it can be
// valid anywhere.
func (p Params) Bound() time.Duration {
	return p.Permit + time.Duration(float64(p.Permit)*p.BarrierSlack)
}

// orDefaults fills in what is zero.
func (p Params) orDefaults() Params {
	d := Defaults()
	for _, f := range []struct{ v, def *time.Duration }{
		{&p.Permit, &d.Permit}, {&p.Poll, &d.Poll}, {&p.Call, &d.Call}, {&p.Custody, &d.Custody}, {&p.Compare, &d.Compare},
		{&p.ClockJump, &d.ClockJump}, {&p.ClockWarn, &d.ClockWarn}, {&p.ClockStop, &d.ClockStop},
		{&p.Registered, &d.Registered}, {&p.BarrierPoll, &d.BarrierPoll},
	} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	if p.BarrierSlack == 0 {
		p.BarrierSlack = d.BarrierSlack
	}
	return p
}
