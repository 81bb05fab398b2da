"""`client.events`: the live stream of the instance."""

from __future__ import annotations

from ...protocol.operations import EVENTS_SUBSCRIBE, LiveStream, NoParams
from .calls import Calls
from .stream import EventStream


class Events:
    """Operations on events, named as in the contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def subscribe(self) -> EventStream[LiveStream]:
        """Everything that happens from the first item on, deltas included; nothing is replayed.

        Ends with `SubscriberOverflowError` when the consumer falls too far behind, and with `ClientError` when the connection
        ends.
        """
        return self._calls.stream(EVENTS_SUBSCRIBE, NoParams())
