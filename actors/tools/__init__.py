"""Tools, their registry and their bounded output: a tool sees its own invocation, never the store or the wire."""
