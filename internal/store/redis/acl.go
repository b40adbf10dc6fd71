package redis

// ACL is what a store with the prefix "pact" needs of its user, as `ACL SETUSER`
// takes it after the name, `on` and the password. It may not read another's keys,
// run scripts as text, empty the server or change its settings. In a cluster every
// node needs it. A server without an append-only file needs `+config|get` too, see
// CheckServer.
const ACL = "resetkeys ~pact:* resetchannels &pact:* -@all +@read +@write -@dangerous " +
	"+evalsha +script|load +time +info +wait +ping +publish +subscribe +unsubscribe +cluster|slots"
