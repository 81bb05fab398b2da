"""Which model answers and how its provider is reached: HTTP happens here, Sessions and the store are unknown."""
