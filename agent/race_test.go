//go:build race

package agent_test

// stride: the race detector sees at one step of a walk what it sees at the next.
const stride = 5
