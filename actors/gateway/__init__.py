"""The server side of the wire: sockets, authentication and routing to the contract; it decides nothing about a Session."""
