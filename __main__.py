"""`python -m steerway`: the same program as the console script. The import is absolute: this is the package's root."""

from steerway.actors.commands import main

if __name__ == "__main__":
    main()
