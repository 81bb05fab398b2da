"""Canonical LLM events and one sans-IO adapter per provider protocol: bytes and values in and out, no sockets, and no knowledge of the public contract."""
