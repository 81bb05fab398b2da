"""Models: the catalog, the way to providers, and the built-in demo model. Nothing here retries or writes history."""

from .catalog import DEMO_MODEL, ModelInfo
from .models import Models

__all__ = ["DEMO_MODEL", "ModelInfo", "Models"]
