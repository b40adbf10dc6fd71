//go:build !race

package agent_test

// stride: a walk looks at every step.
const stride = 1
