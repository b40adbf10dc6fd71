package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pactsigner/pactsigner/test/servers"
)

// A replica with a password that Redis refuses says so, and goes on by itself once the
// file has the right one.
func TestRedisPasswordExchanged(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisOptions{})
	redis.Do("ACL", "SETUSER", "signer", "on", ">first", "~*", "&*", "+@all")
	c := onRedis(t, redis.Addr())
	c.Store.Redis.Username, c.Store.Redis.PasswordFile = "signer", filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(c.Store.Redis.PasswordFile, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	token := mustInit(t, c)
	write("wrong")
	s := run(t, c)
	s.unreadyBecause(t, "store.redis.passwordFile")
	write("first")
	s.awaitReady(t)
	credential := s.letIn(t, token)
	s.signs(t, credential)

	redis.Do("ACL", "SETUSER", "signer", "resetpass", ">second")
	redis.Do("CLIENT", "KILL", "USER", "signer")
	s.unreadyBecause(t, "store.redis.passwordFile")
	write("second")
	s.awaitReady(t)
	s.signs(t, credential)
}
