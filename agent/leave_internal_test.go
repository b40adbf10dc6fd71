package agent

import "testing"

// CV-16: what is told of a message on its way does not change with the operation that goes
// on.
func TestGoingOnStandsAlone(t *testing.T) {
	op := &operation{effect: EffectInspect}
	op.result.Effect = &op.effect
	told := op.goingOn(&message{})
	op.effect = EffectChange // computed anew
	if *told.Effect != EffectInspect {
		t.Errorf("told %v", *told.Effect)
	}
}
