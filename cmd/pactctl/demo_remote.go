package main

import (
	"context"
	"fmt"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/control"
)

// checkRemote tells why a running agent cannot be shown: what the demo proves needs
// one that is as fast as the others, and that has done nothing yet.
func (d *demo) checkRemote(ctx context.Context) error {
	const fix = "start one with: pactctl agent serve --profile DIR --time-scale %d, where DIR is new or empty"
	c, err := d.app.dialAgent(ctx, d.remote, d.tokenFile)
	if err != nil {
		return err
	}
	defer c.Close()
	if !c.Decides() {
		return fmt.Errorf("the token has the scope %s, and the demo does what takes %s: use the agent's socket, or such a token", c.Scope(), control.ScopeAdmin)
	}
	process, err := c.Process(ctx)
	if err != nil {
		return err
	}
	if process.TimeScale != demoScale {
		return fmt.Errorf("the agent at %s divides its durations by %d, and the demo by %d: "+fix, d.remote, process.TimeScale, demoScale, demoScale)
	}
	status, err := c.Status(ctx, d.owner())
	if err != nil {
		return err
	}
	if status.Identity != nil || status.Counts != (agent.Counts{}) {
		return fmt.Errorf("the agent at %s has a profile that was used before: "+fix, d.remote, demoScale)
	}
	return nil
}

// dial goes to the running agent.
func (d *demo) dial(ctx context.Context) error {
	c, err := d.app.dialAgent(ctx, d.remote, d.tokenFile)
	if err != nil {
		return err
	}
	d.agent, d.leave = c, c.Close
	return nil
}
