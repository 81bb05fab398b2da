"""One resident Session with its drain and turns: it writes no other Session, and its letter loop never waits."""
