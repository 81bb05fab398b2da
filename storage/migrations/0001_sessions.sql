-- The store itself, the log, and the projections of the log.
-- `event` is the truth. Everything from `session` to `told_path` is rebuilt from it; the tables behind are not.
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
    budget REAL,                     -- US dollars; NULL is no limit
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    head INTEGER NOT NULL,           -- sequence of the last event
    revision INTEGER NOT NULL,       -- raised when agent, model or location changes
    unanswered_seq INTEGER,          -- what still waits for a provider turn, if anything does
    compacted_seq INTEGER NOT NULL,  -- of the message with which the history of a request begins; 0 without compaction
    continued INTEGER NOT NULL DEFAULT 0,  -- how often a start went on with that; no projection of the log
    hidden INTEGER NOT NULL DEFAULT 0,     -- 1 while its history is copied or swept: nobody sees it; no projection of the log
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
CREATE INDEX session_hidden ON session (key) WHERE hidden = 1;
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
    id TEXT PRIMARY KEY,             -- the message id; what was admitted stands in the event at admitted_seq
    session INTEGER NOT NULL,        -- no reference: there is no index by which removing a session could check it
    kind TEXT NOT NULL,              -- prompt, compact or move
    delivery TEXT NOT NULL,          -- of a prompt; a control item has none
    admitted_seq INTEGER NOT NULL,
    promoted_seq INTEGER,            -- of a control item: its delivery
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
    open INTEGER NOT NULL,           -- 1 while it is an assistant's whose turn has no terminal event, or a running compaction
    body BLOB NOT NULL,              -- the message; an assistant's without its content
    UNIQUE (session, seq)
) STRICT;
CREATE INDEX message_open ON message (session) WHERE open = 1;
CREATE INDEX message_compaction ON message (session, seq) WHERE kind IN ('compaction', 'model-switched');
CREATE INDEX message_system ON message (session, seq) WHERE kind = 'system';

CREATE TABLE context_epoch (
    session INTEGER PRIMARY KEY REFERENCES session (key),
    baseline TEXT NOT NULL,          -- exact; sent first, verbatim, until the next epoch
    snapshot TEXT NOT NULL,          -- JSON: what each source was last admitted with
    baseline_seq INTEGER NOT NULL,   -- system messages up to it are part of the baseline
    revision INTEGER NOT NULL,       -- updates admitted since
    reason TEXT NOT NULL,
    stale INTEGER NOT NULL           -- 1: the next boundary begins a new epoch
) STRICT;

CREATE TABLE message_part (
    key INTEGER PRIMARY KEY,         -- order within the message
    message INTEGER NOT NULL REFERENCES message (key),
    session INTEGER NOT NULL,        -- the message's
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    open INTEGER NOT NULL,           -- 1 while a fragment has no end or a call no settlement
    body BLOB NOT NULL,
    UNIQUE (message, id)
) STRICT;
CREATE INDEX message_part_open ON message_part (session) WHERE open = 1;

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

CREATE TABLE permission_request (
    id TEXT PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES session (key),
    message INTEGER NOT NULL REFERENCES message (key),
    call TEXT NOT NULL,
    asked_seq INTEGER NOT NULL,      -- of the event that holds what was asked
    ended_seq INTEGER,
    reply TEXT                       -- how it ended
) STRICT, WITHOUT ROWID;
CREATE INDEX permission_request_order ON permission_request (session, asked_seq);
CREATE INDEX permission_request_message ON permission_request (message);
CREATE INDEX permission_request_open ON permission_request (session, asked_seq) WHERE ended_seq IS NULL;

CREATE TABLE question_request (
    id TEXT PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES session (key),
    message INTEGER NOT NULL REFERENCES message (key),
    call TEXT NOT NULL,
    asked_seq INTEGER NOT NULL,
    ended_seq INTEGER,
    reply TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX question_request_order ON question_request (session, asked_seq);
CREATE INDEX question_request_message ON question_request (message);
CREATE INDEX question_request_open ON question_request (session, asked_seq) WHERE ended_seq IS NULL;

CREATE TABLE managed_output (
    session INTEGER NOT NULL REFERENCES session (key),
    path TEXT NOT NULL,
    PRIMARY KEY (session, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX managed_output_path ON managed_output (path);

CREATE TABLE told_path (
    session INTEGER NOT NULL REFERENCES session (key),
    path TEXT NOT NULL,              -- of an instruction file that a synthetic message has told
    PRIMARY KEY (session, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE open_fragment (
    key INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES message (key),
    part TEXT NOT NULL,              -- a part, or a call whose input is being written
    text TEXT NOT NULL,              -- as it was at the last checkpoint
    UNIQUE (message, part)
) STRICT;

CREATE TABLE context_entry (
    session INTEGER NOT NULL REFERENCES session (key),
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE saved_permission (
    id TEXT PRIMARY KEY,
    directory TEXT NOT NULL,
    action TEXT NOT NULL,
    resource TEXT NOT NULL,
    created INTEGER NOT NULL,
    UNIQUE (directory, action, resource)
) STRICT;

CREATE TABLE tombstone (
    id TEXT PRIMARY KEY              -- of a session that was removed; it is never used again
) STRICT, WITHOUT ROWID;

CREATE TABLE migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied INTEGER NOT NULL
) STRICT;
