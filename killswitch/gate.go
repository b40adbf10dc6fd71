package killswitch

import "sync/atomic"

// gate knows which deliveries are under way. Each belongs to the generation
// that was current when it entered; retiring a generation tells when the last
// of its deliveries has left, without holding up those that come after.
type gate struct {
	current atomic.Pointer[generation]
}

// generation counts the deliveries inside, and has retiredBit set once no more
// may enter.
type generation struct {
	n       atomic.Int64
	drained atomic.Bool
	notify  func()
}

const retiredBit = 1 << 62

func newGate() *gate {
	g := new(gate)
	g.current.Store(new(generation))
	return g
}

// enter joins the current generation. Everything that was stored before that
// generation's predecessor was retired is visible to the caller.
func (g *gate) enter() *generation {
	for {
		gen := g.current.Load()
		if n := gen.n.Load(); n&retiredBit == 0 && gen.n.CompareAndSwap(n, n+1) {
			return gen
		}
	}
}

// leave ends a delivery.
func (gen *generation) leave() {
	if gen.n.Add(-1) == retiredBit {
		gen.finish()
	}
}

// retire starts a new generation. notify is called once, when the last delivery
// of the old one has left; the returned generation is drained from then on.
func (g *gate) retire(notify func()) *generation {
	old := g.current.Load() // only one caller retires at a time
	old.notify = notify
	g.current.Store(new(generation))
	if old.n.Add(retiredBit) == retiredBit {
		old.finish()
	}
	return old
}

func (gen *generation) finish() {
	gen.drained.Store(true)
	gen.notify()
}
