"""The server's side of the wire: sockets, authentication, routing to the contract; it decides nothing of a Session."""
