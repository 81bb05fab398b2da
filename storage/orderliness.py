"""What a session's log must look like, said once more and without the projectors, so that a defect of theirs is seen.

Rules:
- The first event creates the session, and no other one does. Sequences are 1..n.
- One fate for each admitted prompt. One terminal event for each turn, one end for each attempt; one turn at a time.
- One end for each fragment, one settlement for each call, both inside their turn. One end for each request, before its call's.
- At the end nothing is open, unless a process is at work.
"""

from __future__ import annotations

from ..protocol.values import (
    CallId,
    CompactionCompleted,
    CompactionFailed,
    CompactionStarted,
    ControlAdmitted,
    ControlWithdrawn,
    Event,
    MessageId,
    PromptAdmitted,
    PromptPromoted,
    PromptWithdrawn,
    ReasoningEnded,
    ReasoningStarted,
    SessionCreated,
    SessionMoved,
    TextEnded,
    TextStarted,
    ToolCalled,
    ToolFailed,
    ToolInputEnded,
    ToolInputStarted,
    ToolSucceeded,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from ..protocol.values.event import (
    PermissionAsked,
    PermissionReplied,
    PromptRedelivered,
    QuestionAsked,
    QuestionRejected,
    QuestionReplied,
    RetryScheduled,
)
from ..protocol.values.ids import RequestId

_Key = tuple[MessageId, str]


class SessionLog:
    """Takes one session's events in order; `faults` are sentences, each beginning with where."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._seq = 0
        self._waiting: set[MessageId] = set()
        self._decided: set[MessageId] = set()
        self._turn: MessageId | None = None
        self._ended: set[MessageId] = set()
        self._attempt = 0
        self._attempting = False
        self._fragments: dict[_Key, bool] = {}
        """Whether the fragment is open."""
        self._calls: dict[_Key, str] = {}
        """`writing`, `written`, `running` or `settled`."""
        self._compacting: set[MessageId] = set()
        self._requests: dict[RequestId, _Key | None] = {}
        """The call that waits, None once the request has its end."""

    def take(self, event: Event) -> None:
        """The next event."""
        seq = event.seq or 0
        if seq != self._seq + 1:
            self._fault(seq, f"follows event {self._seq}" if self._seq else "is the first one")
        self._seq = seq
        if isinstance(event.data, SessionCreated) != (seq == 1):
            self._fault(seq, f"is {event.type}" if seq == 1 else "creates the session again")
        self._inbox(seq, event)
        self._turns(seq, event)
        self._parts(seq, event)
        self._waits(seq, event)
        self._compactions(seq, event)

    def left_open(self) -> list[str]:
        """What has no end yet, as sentences."""
        found = [] if self._turn is None else [f"turn {self._turn} has no terminal event"]
        found += [f"fragment {part} has no end" for (_, part), open in self._fragments.items() if open]
        found += [f"call {call} has no settlement" for (_, call), state in self._calls.items() if state != "settled"]
        found += [f"request {request} has no end" for request, call in self._requests.items() if call is not None]
        found += [f"compaction {compaction} has no end" for compaction in self._compacting]
        return found

    def _compactions(self, seq: int, event: Event) -> None:
        match event.data:
            case CompactionStarted(message_id=id):
                if self._turn is not None or self._compacting:
                    self._fault(seq, f"starts compaction {id} while something else is open")
                self._compacting.add(id)
            case CompactionCompleted(message_id=id) | CompactionFailed(message_id=id):
                if id not in self._compacting:
                    self._fault(seq, f"ends compaction {id}, which is not open")
                self._compacting.discard(id)
            case _:
                pass

    def _fault(self, seq: int, what: str) -> None:
        self.faults.append(f"event {seq} {what}")

    def _inbox(self, seq: int, event: Event) -> None:
        match event.data:
            case PromptAdmitted(message_id=id) | ControlAdmitted(message_id=id):
                if id in self._waiting or id in self._decided:
                    self._fault(seq, f"admits {id} again")
                self._waiting.add(id)
            case CompactionStarted(message_id=id) if id not in self._waiting:
                pass
            case (
                PromptPromoted(message_id=id)
                | PromptWithdrawn(message_id=id)
                | ControlWithdrawn(message_id=id)
                | SessionMoved(message_id=id)
                | CompactionStarted(message_id=id)
            ):
                if id not in self._waiting:
                    self._fault(seq, f"is another fate of {id}" if id in self._decided else f"is a fate of unknown {id}")
                self._waiting.discard(id)
                self._decided.add(id)
            case PromptRedelivered(message_id=id) if id not in self._waiting:
                self._fault(seq, f"redelivers {id}, which does not wait")
            case _:
                pass

    def _turns(self, seq: int, event: Event) -> None:
        match event.data:
            case TurnStarted(assistant_message_id=id, attempt=attempt):
                if attempt == 1:
                    if self._turn is not None:
                        self._fault(seq, f"starts {id} while {self._turn} is open")
                    if id in self._ended:
                        self._fault(seq, f"starts {id} again")
                    self._turn = id
                elif id != self._turn or attempt != self._attempt + 1:
                    self._fault(seq, f"is attempt {attempt} of {id}, which is not at {attempt - 1}")
                self._attempt, self._attempting = attempt, True
            case RetryScheduled(assistant_message_id=id, attempt=attempt):
                if id != self._turn or attempt != self._attempt + 1 or not self._attempting:
                    self._fault(seq, f"is a second end of attempt {attempt - 1} of {id}, or of another turn")
                self._attempting = False
            case TurnCompleted(assistant_message_id=id) | TurnFailed(assistant_message_id=id):
                self._end(seq, id)
            case TurnInterrupted(assistant_message_id=id):
                self._end(seq, id)
            case _:
                pass

    def _end(self, seq: int, id: MessageId) -> None:
        if id in self._ended:
            self._fault(seq, f"ends {id} again")
        elif id != self._turn:
            self._fault(seq, f"ends {id}, which never started")
        open_parts = [part for (turn, part), open in self._fragments.items() if open and turn == id]
        open_parts += [call for (turn, call), state in self._calls.items() if state != "settled" and turn == id]
        if open_parts:
            self._fault(seq, f"ends {id} before {', '.join(open_parts)}")
        self._ended.add(id)
        self._turn = None if id == self._turn else self._turn

    def _parts(self, seq: int, event: Event) -> None:
        match event.data:
            case (
                TextStarted(assistant_message_id=turn, part_id=part) | ReasoningStarted(assistant_message_id=turn, part_id=part)
            ):
                self._inside(seq, turn)
                if (turn, part) in self._fragments:
                    self._fault(seq, f"starts {part} again")
                self._fragments[turn, part] = True
            case TextEnded(assistant_message_id=turn, part_id=part) | ReasoningEnded(assistant_message_id=turn, part_id=part):
                if not self._fragments.get((turn, part)):
                    self._fault(seq, f"ends {part}, which is not open")
                self._fragments[turn, part] = False
            case ToolInputStarted(assistant_message_id=turn, call_id=call):
                self._inside(seq, turn)
                self._step(seq, (turn, call), (None,), "writing")
            case ToolInputEnded(assistant_message_id=turn, call_id=call):
                self._step(seq, (turn, call), ("writing", "written"), "written")
            case ToolCalled(assistant_message_id=turn, call_id=call):
                self._inside(seq, turn)
                self._step(seq, (turn, call), (None, "writing", "written"), "running")
            case ToolSucceeded(assistant_message_id=turn, call_id=call):
                self._settle(seq, (turn, call), ("running",))
            case ToolFailed(assistant_message_id=turn, call_id=call):
                self._settle(seq, (turn, call), ("writing", "written", "running"))
            case _:
                pass

    def _inside(self, seq: int, turn: MessageId) -> None:
        if turn != self._turn:
            self._fault(seq, f"belongs to {turn}, which is not the open turn")

    def _step(self, seq: int, key: _Key, allowed: tuple[str | None, ...], state: str) -> None:
        found = self._calls.get(key)
        if found not in allowed:
            self._fault(seq, f"makes call {key[1]} {state}, which is {found or 'unknown'}")
        self._calls[key] = state

    def _settle(self, seq: int, key: _Key, allowed: tuple[str | None, ...]) -> None:
        self._step(seq, key, allowed, "settled")
        for request, call in self._requests.items():
            if call == key:
                self._fault(seq, f"settles call {CallId(key[1])} while {request} is open")

    def _waits(self, seq: int, event: Event) -> None:
        match event.data:
            case PermissionAsked() | QuestionAsked():
                data = event.data
                key = (data.assistant_message_id, data.call_id)
                if data.request_id in self._requests:
                    self._fault(seq, f"asks {data.request_id} again")
                if self._calls.get(key) != "running":
                    self._fault(seq, f"asks for call {data.call_id}, which does not run")
                self._requests[data.request_id] = key
            case PermissionReplied(request_id=request) | QuestionReplied(request_id=request):
                self._answer(seq, request)
            case QuestionRejected(request_id=request):
                self._answer(seq, request)
            case _:
                pass

    def _answer(self, seq: int, request: RequestId) -> None:
        if self._requests.get(request) is None:
            self._fault(seq, f"ends {request}, which is not open")
        self._requests[request] = None
