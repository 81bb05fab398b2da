"""Steerway, a durable runtime for AI-agent sessions; this module only names what is public and loads it on first use.

Rules:
- Importing the package loads none of its floors: `import steerway.protocol` brings neither trio nor SQLite, and
  `steerway.connect` brings no SQLite. Each public name is fetched from its module when it is first asked for.
- A name is public when it stands in `__all__`. The imports below are for type checkers, `_HOMES` is for the running
  program, and a test holds the two and `__all__` together.
- Imports are absolute here and in `__main__.py`: this folder is the package's root, and a test runner that came upon
  it under another name would otherwise load every module twice.
"""

from importlib import import_module

__all__: list[str] = []

_HOMES: dict[str, str] = {}


def __getattr__(name: str) -> object:
    """Fetch the public name `name` from its module, once; any other name is an AttributeError, as in every module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names that exist, whether they have been loaded yet or not."""
    return sorted({*globals(), *__all__})
