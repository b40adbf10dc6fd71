//go:build !race

package agent

// maxHidden is how many bytes may be allocated for each of a text that is searched: some 200
// are, and were 50,000 when each place was looked for by itself.
const maxHidden = 2000
