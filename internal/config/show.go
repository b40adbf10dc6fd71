package config

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// Redacted stands where a value is not shown.
const Redacted = "[redacted]"

// YAML returns the configuration as a file that Load reads, but with token
// hashes redacted.
func (c Config) YAML() ([]byte, error) {
	c.Admin.Tokens = slices.Clone(c.Admin.Tokens)
	for i := range c.Admin.Tokens {
		c.Admin.Tokens[i].Hash = Redacted
	}
	return yaml.Marshal(c)
}
