"""Forking as the runtime does it: page by page, between the commits of everybody else.

A fork that fails, or whose caller gives up, leaves nothing: what was copied is swept, here or when the store is opened next.
"""

from __future__ import annotations

import contextlib

import trio

from ...protocol.values.errors import DeclaredError
from ...protocol.values.session import Session
from ...storage.copying import Fork
from ..storage import StorageActor

SWEEP_SECONDS = 5.0
"""For tidying up after a copy that ends early; the next opening of the store does the rest."""


async def fork(storage: StorageActor, copy: Fork) -> Session:
    """The child, once it is whole. Raises `SessionNotFoundError`, `MessageNotFoundError`, or `StorageUnavailableError`.

    Cancelled before the last page is committed, it leaves no child.
    """
    whole = False
    try:
        while await storage.read(copy.survey):
            pass
        while True:
            await storage.read(copy.read)
            copy.rename()
            child = await storage.commit(copy.write)
            if child is not None:
                whole = True
                return child.session
    finally:
        if copy.begun and not whole:
            with trio.CancelScope(shield=True), contextlib.suppress(DeclaredError):
                enough = trio.current_time() + SWEEP_SECONDS
                while await storage.commit(copy.sweep) and trio.current_time() < enough:
                    pass
