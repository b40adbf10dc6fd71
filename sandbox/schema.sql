-- Times are nanoseconds since 1970, 0 for none; lists are JSON arrays; secrets are
-- hashes, but for the private keys and the user codes, which the pages look up and
-- which give nothing without a login.

CREATE TABLE platforms (
	issuer TEXT PRIMARY KEY, id TEXT NOT NULL, name TEXT NOT NULL UNIQUE, jwks_uri TEXT NOT NULL, enabled INTEGER NOT NULL
) STRICT;

-- keys are those of the brands' authorization servers, PKCS #8.
CREATE TABLE keys (brand TEXT PRIMARY KEY, private BLOB NOT NULL) STRICT;

-- conversations: user is the brand's user once a turn ran as one; asked is what the
-- last step-up missed; opened is the messageId that leads here without the contextId.
CREATE TABLE conversations (
	id TEXT PRIMARY KEY, brand TEXT NOT NULL, issuer TEXT NOT NULL, subject TEXT NOT NULL,
	user TEXT NOT NULL DEFAULT '', closed INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL,
	asked TEXT NOT NULL DEFAULT '[]', opened TEXT
) STRICT;
CREATE INDEX conversations_issuer ON conversations (issuer, used);
CREATE INDEX conversations_opened ON conversations (brand, issuer, subject, opened) WHERE opened IS NOT NULL;

-- messages: reply is NULL while the turn runs, and for good if it never ended.
CREATE TABLE messages (
	conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE, id TEXT NOT NULL,
	user TEXT NOT NULL DEFAULT '', reply BLOB,
	PRIMARY KEY (conversation, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_unanswered ON messages (conversation) WHERE reply IS NULL;

-- memories are what the brands' replies left behind.
CREATE TABLE memories (
	brand TEXT NOT NULL, user TEXT NOT NULL, value BLOB NOT NULL,
	PRIMARY KEY (brand, user)
) STRICT, WITHOUT ROWID;

-- authorizations: device is the hash of the device code, NULL behind a step-up's link.
CREATE TABLE authorizations (
	user_code TEXT PRIMARY KEY, device TEXT UNIQUE,
	brand TEXT NOT NULL, issuer TEXT NOT NULL, subject TEXT NOT NULL,
	scopes TEXT NOT NULL, expires INTEGER NOT NULL, interval INTEGER NOT NULL, polled INTEGER NOT NULL,
	any_pace INTEGER NOT NULL, state INTEGER NOT NULL, user TEXT NOT NULL, granted TEXT NOT NULL
) STRICT;
CREATE INDEX authorizations_party ON authorizations (brand, issuer, subject);
CREATE INDEX authorizations_issuer ON authorizations (issuer);
CREATE INDEX authorizations_expires ON authorizations (expires);

CREATE TABLE grants (
	id TEXT PRIMARY KEY, brand TEXT NOT NULL, issuer TEXT NOT NULL, subject TEXT NOT NULL,
	user TEXT NOT NULL, scopes TEXT NOT NULL, made INTEGER NOT NULL, expires INTEGER NOT NULL,
	revoked INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX grants_expires ON grants (expires);
CREATE INDEX grants_party ON grants (brand, issuer, subject, user);

CREATE TABLE refreshes (
	hash TEXT PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES grants ON DELETE CASCADE, spent INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX refreshes_grant ON refreshes (grant_id);

-- receipts has a row for each delegated turn, also where a fault held the receipt
-- back (NULL).
CREATE TABLE receipts (
	id INTEGER PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES grants ON DELETE CASCADE,
	at INTEGER NOT NULL, conversation TEXT NOT NULL, message TEXT NOT NULL,
	tools TEXT NOT NULL, scopes TEXT NOT NULL, receipt BLOB
) STRICT;
CREATE INDEX receipts_grant ON receipts (grant_id);
