"""Pure values, contract, codecs and state machines: nothing here waits, reads a clock, draws randomness or does I/O."""
