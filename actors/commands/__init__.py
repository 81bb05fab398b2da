"""The command line, one module per command: it parses, prints and exits, and does all its work through the public interface."""
