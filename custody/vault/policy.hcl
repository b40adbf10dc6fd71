# What a PACT signer may do in Vault, mode transit. `signer vault policy` prints it with
# the mounts and the prefix of a configuration.
#
# Vault matches a trailing "*" with whatever follows, slashes too, and does not
# combine it with a rule for one segment. So a rule for the keys of one prefix is
# also one for their config, rotate, trim and import; what those may do is limited
# by the parameters that may be sent.

# Signing keys: made (never exportable), read, and disabled by rotating them once
# and raising both floors to 2. Nothing here deletes, trims, imports, or lowers a
# floor again. The floors are strings, because Vault finds no number of a request in
# a policy.
path "transit/keys/pact-signer-*" {
  capabilities = ["create", "read", "update"]
  allowed_parameters = {
    "type"                   = ["ecdsa-p256", "rsa-2048", "rsa-3072"]
    "exportable"             = [false]
    "allow_plaintext_backup" = [false]
    "derived"                = [false]
    "min_encryption_version" = ["2"]
    "min_decryption_version" = ["2"]
  }
}

path "transit/sign/pact-signer-*" {
  capabilities = ["update"]
}

# The subject key is used, and never changed.
path "transit/hmac/pact-signer-subject" {
  capabilities = ["update"]
}

path "transit/keys/pact-signer-subject" {
  capabilities = ["read"]
}

path "transit/keys/pact-signer-subject/*" {
  capabilities = ["deny"]
}

# Mode wrapped has a key that this mode does not touch.
path "transit/keys/pact-signer-wrap" {
  capabilities = ["deny"]
}

path "transit/keys/pact-signer-wrap/*" {
  capabilities = ["deny"]
}

# Documents, and the public halves of disabled keys: written and read, never
# deleted.
path "secret/data/pact-signer/documents/*" {
  capabilities = ["create", "read", "update"]
}

path "secret/data/pact-signer/public/*" {
  capabilities = ["create", "read", "update"]
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
