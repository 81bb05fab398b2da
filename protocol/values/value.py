"""The one shape of every public value: a frozen keyword-only Struct whose absent fields are left out.

A field that may be absent has the default `None` and is omitted on the wire; every other field has no default, so it is
always there. Readers ignore fields they do not know (wire contract, "Operations").
"""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all values. Immutable, compared by content, encoded the same way by both codecs."""
