"""Pure values, contract, codecs and state machines: nothing here waits, reads a clock, draws a random number or does I/O."""
