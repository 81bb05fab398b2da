"""Which model answers and how its provider is reached: HTTP happens here, and nothing here knows a Session or the store."""
