"""`python -m steerway`: the same program as the console script. Imports here are absolute, because this is the package root."""

from steerway.actors.commands import main

if __name__ == "__main__":
    main()
