"""What every test may count on in its own process.

Whoever starts the suite in the background of a shell hands it an ignored SIGINT, which every program that a test starts would
inherit: then Ctrl-C could not be tested, and who waits for it would wait for ever.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
