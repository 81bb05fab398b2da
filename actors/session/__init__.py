"""One resident Session: its letters, its drain and its turns; it writes nothing that belongs to another Session, and its letter loop never waits."""
