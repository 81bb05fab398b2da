"""Canonical LLM events and a sans-IO adapter per provider protocol: no sockets, and nothing of the public contract."""
