-- The store itself, the log, and the projections of the log.
-- `event` is the truth. Everything from `session` to `attempt` is rebuilt from it; `store` and `migration` are not.
-- Sessions and messages have an integer key inside and their text id outside. Bodies are MessagePack.

CREATE TABLE store (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    generation TEXT NOT NULL,        -- identity of this history; new when the file is a copy
    created INTEGER NOT NULL,
    inode INTEGER NOT NULL,          -- of the database file when the generation was made
    copied INTEGER NOT NULL,         -- 1 in a copy that has not been opened yet
    fence INTEGER NOT NULL,          -- raised by every opening; a writer that reads another number has lost the store
    owner TEXT NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL
) STRICT;

CREATE TABLE session (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    directory TEXT NOT NULL,
    parent_id TEXT,
    agent TEXT,
    model BLOB,
    metadata BLOB,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    head INTEGER NOT NULL,           -- sequence of the last event
    revision INTEGER NOT NULL,       -- raised when agent, model or location changes
    unanswered_seq INTEGER,          -- what still waits for a provider turn, if anything does
    cost REAL NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL
) STRICT;
CREATE INDEX session_order ON session (created, id);
CREATE INDEX session_directory ON session (directory, created, id);
CREATE INDEX session_parent ON session (parent_id, created, id) WHERE parent_id IS NOT NULL;
CREATE INDEX session_unanswered ON session (key) WHERE unanswered_seq IS NOT NULL;
CREATE VIRTUAL TABLE session_title USING fts5 (title, content = 'session', content_rowid = 'key', tokenize = 'trigram');

CREATE TABLE event (
    id INTEGER PRIMARY KEY,          -- order of all commits
    session INTEGER NOT NULL REFERENCES session (key),
    seq INTEGER NOT NULL,            -- gap-free from 1 within the session
    type TEXT NOT NULL,
    created INTEGER NOT NULL,
    body BLOB NOT NULL,              -- the whole encoded event, as it goes out
    UNIQUE (session, seq)
) STRICT;

CREATE TABLE inbox (
    id TEXT PRIMARY KEY,             -- the message id; the prompt itself stands in the event at admitted_seq
    session INTEGER NOT NULL REFERENCES session (key),
    kind TEXT NOT NULL,
    delivery TEXT NOT NULL,
    admitted_seq INTEGER NOT NULL,
    promoted_seq INTEGER,
    withdrawn_seq INTEGER,
    CHECK (promoted_seq IS NULL OR withdrawn_seq IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX inbox_pending ON inbox (session, admitted_seq) WHERE promoted_seq IS NULL AND withdrawn_seq IS NULL;

CREATE TABLE message (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session INTEGER NOT NULL REFERENCES session (key),
    seq INTEGER NOT NULL,            -- of the event that created it; never moves
    kind TEXT NOT NULL,
    body BLOB NOT NULL,              -- the message; an assistant's without its content
    UNIQUE (session, seq)
) STRICT;

CREATE TABLE message_part (
    key INTEGER PRIMARY KEY,         -- order within the message
    message INTEGER NOT NULL REFERENCES message (key),
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    open INTEGER NOT NULL,           -- 1 while a fragment has no end or a call no settlement
    body BLOB NOT NULL,
    UNIQUE (message, id)
) STRICT;
CREATE INDEX message_part_open ON message_part (message) WHERE open = 1;

CREATE TABLE attempt (
    message INTEGER NOT NULL REFERENCES message (key),
    number INTEGER NOT NULL,
    session INTEGER NOT NULL REFERENCES session (key),
    started_seq INTEGER NOT NULL,
    ended_seq INTEGER,
    outcome BLOB,                    -- of a turn that ended and does not continue
    PRIMARY KEY (message, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempt_order ON attempt (session, started_seq);
CREATE INDEX attempt_open ON attempt (session) WHERE ended_seq IS NULL;

CREATE TABLE migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied INTEGER NOT NULL
) STRICT;
