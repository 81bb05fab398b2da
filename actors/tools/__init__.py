"""Tools, their registry and their bounded output: a tool sees its own invocation and never the store or a socket of the gateway."""
