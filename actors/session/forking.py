"""Forking as the runtime does it: page by page, between the commits of everybody else.

A fork that fails, or whose caller gives up, leaves nothing that anybody sees: what was copied is swept.
"""

from __future__ import annotations

from ...protocol.values.session import Session
from ...storage.copying import Fork
from ..storage import StorageActor
from .sweeping import Sweeper


async def fork(storage: StorageActor, sweeper: Sweeper, copy: Fork) -> Session:
    """The child, once it is whole. Raises `SessionNotFoundError`, `MessageNotFoundError`, or `StorageUnavailableError`.

    Cancelled before the last page is committed, it leaves no child.
    """
    await sweeper.sweep_unowned()
    with sweeper.owning((copy.child_id,)):
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
                await sweeper.sweep((copy.child_id,))
