package redis

import "strings"

// ACL is what a store with the prefix "pact" needs of its user, as `ACL SETUSER`
// takes it after the name, `on` and the password. It may not read another's keys,
// run scripts as text, empty the server or change its settings. In a cluster every
// node needs it.
const ACL = "resetkeys ~pact:* resetchannels &pact:* -@all +@read +@write -@dangerous " +
	"+evalsha +script|load +time +info +wait +ping +publish +subscribe +unsubscribe +cluster|slots"

// ACLFor is ACL for another prefix.
func ACLFor(prefix string) string {
	return strings.ReplaceAll(ACL, "pact:", globEscape(prefix)+":")
}
