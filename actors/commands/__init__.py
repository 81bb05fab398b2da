"""The command line, a module per command: it parses, prints and exits; all else goes through the public interface."""
