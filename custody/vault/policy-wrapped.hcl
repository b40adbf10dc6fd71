# What a PACT signer may do in Vault, mode wrapped. `signer vault policy` prints it with
# the mounts and the prefix of a configuration.

# The wrapping key encrypts and decrypts, and only what is bound to a key's name.
path "transit/encrypt/pact-signer-wrap" {
  capabilities        = ["update"]
  required_parameters = ["associated_data"]
  allowed_parameters = {
    "plaintext"       = []
    "associated_data" = []
  }
}

path "transit/decrypt/pact-signer-wrap" {
  capabilities        = ["update"]
  required_parameters = ["associated_data"]
  allowed_parameters = {
    "ciphertext"      = []
    "associated_data" = []
  }
}

path "transit/keys/pact-signer-wrap" {
  capabilities = ["read"]
}

# The subject key is used, and never changed.
path "transit/hmac/pact-signer-subject" {
  capabilities = ["update"]
}

path "transit/keys/pact-signer-subject" {
  capabilities = ["read"]
}

# Documents, and the wrapped keys: written and read, never deleted.
path "secret/data/pact-signer/documents/*" {
  capabilities = ["create", "read", "update"]
}

path "secret/data/pact-signer/keys/*" {
  capabilities = ["create", "read", "update"]
}

# A disabled key's older versions, which still hold the private half.
path "secret/destroy/pact-signer/keys/*" {
  capabilities = ["update"]
}

# For `signer vault check`: does the mount delete versions by itself?
path "secret/config" {
  capabilities = ["read"]
}

# Its own token.
path "auth/token/lookup-self" {
  capabilities = ["read"]
}

path "auth/token/renew-self" {
  capabilities = ["update"]
}

path "sys/capabilities-self" {
  capabilities = ["update"]
}
