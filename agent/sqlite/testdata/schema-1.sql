-- Version 1 of the schema, as released, with a record in it. Never changed.
CREATE TABLE settings (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX settings_business ON settings (principal, business, created);
CREATE INDEX settings_conversation ON settings (principal, conversation, created);
CREATE INDEX settings_state ON settings (state);
CREATE TABLE identities (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX identities_business ON identities (principal, business, created);
CREATE INDEX identities_conversation ON identities (principal, conversation, created);
CREATE INDEX identities_state ON identities (state);
CREATE TABLE bindings (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX bindings_business ON bindings (principal, business, created);
CREATE INDEX bindings_conversation ON bindings (principal, conversation, created);
CREATE INDEX bindings_state ON bindings (state);
CREATE TABLE providers (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX providers_business ON providers (principal, business, created);
CREATE INDEX providers_conversation ON providers (principal, conversation, created);
CREATE INDEX providers_state ON providers (state);
CREATE TABLE businesses (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX businesses_business ON businesses (principal, business, created);
CREATE INDEX businesses_conversation ON businesses (principal, conversation, created);
CREATE INDEX businesses_state ON businesses (state);
CREATE TABLE grants (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX grants_business ON grants (principal, business, created);
CREATE INDEX grants_conversation ON grants (principal, conversation, created);
CREATE INDEX grants_state ON grants (state);
CREATE TABLE authorizations (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX authorizations_business ON authorizations (principal, business, created);
CREATE INDEX authorizations_conversation ON authorizations (principal, conversation, created);
CREATE INDEX authorizations_state ON authorizations (state);
CREATE TABLE conversations (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX conversations_business ON conversations (principal, business, created);
CREATE INDEX conversations_conversation ON conversations (principal, conversation, created);
CREATE INDEX conversations_state ON conversations (state);
CREATE TABLE messages (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX messages_business ON messages (principal, business, created);
CREATE INDEX messages_conversation ON messages (principal, conversation, created);
CREATE INDEX messages_state ON messages (state);
CREATE TABLE receipts (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX receipts_business ON receipts (principal, business, created);
CREATE INDEX receipts_conversation ON receipts (principal, conversation, created);
CREATE INDEX receipts_state ON receipts (state);
CREATE TABLE blocks (
	id TEXT NOT NULL, principal TEXT NOT NULL, business TEXT NOT NULL, conversation TEXT NOT NULL,
	key TEXT, state TEXT NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
	lease_owner TEXT NOT NULL, lease_until INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (principal, id), UNIQUE (principal, key)
) STRICT;
CREATE INDEX blocks_business ON blocks (principal, business, created);
CREATE INDEX blocks_conversation ON blocks (principal, conversation, created);
CREATE INDEX blocks_state ON blocks (state);
CREATE TABLE secrets (id TEXT PRIMARY KEY, sealed BLOB NOT NULL) STRICT;
INSERT INTO grants VALUES ('grant-1', 'alice', 'b-1', '', NULL, 'active', 3, 1795953600123456, 'run-1/refresh-1', 1795953630000000, CAST('{"GrantID":"g-1"}' AS BLOB));
INSERT INTO secrets VALUES ('grant-1', CAST('sealed' AS BLOB));
PRAGMA user_version = 1;
