"""The other end of the wire, by socket or in memory: it may use the protocol and never the runtime, the gateway or the store."""
