"""The other end of the wire, by socket or in memory: it may use the protocol, never the runtime or the store."""
