//go:build race

package agent

// maxHidden is how many bytes may be allocated for each of a text that is searched; the race
// detector has more of them.
const maxHidden = 10000
