"""Steerway, a durable runtime for AI-agent sessions; this module only names what is public and loads it on first use."""
