// Command vault is HashiCorp Vault itself, built from its Go module for the tests; it is never shipped.
package main

import (
	"os"

	"github.com/hashicorp/vault/command"
)

func main() { os.Exit(command.Run(os.Args[1:])) }
