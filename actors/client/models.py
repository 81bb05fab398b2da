"""`client.models`: what can be selected."""

from __future__ import annotations

from ...protocol.operations import MODELS_LIST, NoParams
from ...protocol.values.model import CatalogModel
from .calls import Calls


class ModelCatalog:
    """Operations on models, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, *, timeout: float | None = None) -> tuple[CatalogModel, ...]:
        """The models that can be selected now, by provider and id. A provider without listed models takes any id."""
        return await self._calls.call(MODELS_LIST, NoParams(), timeout=timeout)
