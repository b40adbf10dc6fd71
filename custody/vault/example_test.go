package vault_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log"

	"github.com/go-jose/go-jose/v4"

	"github.com/pactsigner/pactsigner/custody/vault"
)

// A signer logs in with AppRole, makes a key that never leaves Vault, and signs.
func Example() {
	cfg := vault.Config{
		Addresses: []string{"https://vault-1.example.com:8200", "https://vault-2.example.com:8200"},
		CAFile:    "/etc/pact/vault-ca.pem",
		Auth: vault.Auth{
			Method: "approle", RoleIDFile: "/etc/pact/vault/role-id", SecretIDFile: "/etc/pact/vault/secret-id",
		},
	}
	ctx := context.Background()
	for _, f := range vault.Check(ctx, cfg) {
		if f.Severity == vault.Problem {
			log.Fatalf("%s: %s; %s", f.Check, f.Detail, f.Fix)
		}
	}
	keys, err := vault.Open(cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer keys.Close()
	if _, err := keys.Create(ctx, "pa.example.com-1", jose.ES256); err != nil {
		log.Fatal(err)
	}
	digest := sha256.Sum256([]byte("header.payload"))
	signature, err := keys.Sign(ctx, "pa.example.com-1", digest[:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", signature)
}

// The policy goes to whoever writes policies into Vault, if that is not bootstrap.
func ExamplePolicy() {
	policy, err := vault.Policy(vault.Config{Prefix: "pa-production", Transit: "pki/transit", KV: "kv"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(policy) > 1000)
	// Output: true
}
