"""What the demo tells: ask, steer, new rules, stop, crash. Each act does it over a WebSocket and checks what it says.

Rules:
- Nothing is taken from the server's inside: the story knows what any client can know, from receipts, events and reads.
- Every act waits for events, never for time. What is sent in mid-answer has most of a second before that answer ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import trio

from ...protocol.values import (
    Activity,
    Admission,
    AssistantMessage,
    CompletedOutcome,
    ContextUpdated,
    EpochStarted,
    Event,
    MessageId,
    PromptAdmitted,
    PromptPromoted,
    Session,
    SessionId,
    Synced,
    TextDelta,
    TextEnded,
    TextPart,
    ToolCalled,
    ToolSucceeded,
    TurnCompleted,
    TurnInterrupted,
    TurnStarted,
    UserMessage,
)
from ...protocol.values.event import EventData
from ..client.opening import connect
from ..client.scope import Background
from .demo_server import ServerProcess, server_process
from .invocation import as_typed

if TYPE_CHECKING:
    from ...protocol.operations import LiveStream
    from ..client.client import Client
    from ..client.stream import EventStream
    from .demo_stage import Stage

DataT = TypeVar("DataT", bound=EventData)


class Story:
    """The whole of it, with a store in `folder`."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._store = folder / "sessions.db"
        self._directory = folder

    async def tell(self) -> None:
        """Tell it. Raises `Refusal` at the first claim that does not hold."""
        begun = monotonic()
        self._stage.tell(
            "Steerway runs conversations with AI agents so that nothing is lost: whatever it has acknowledged is on disk. "
            "Here is a server in a process of its own, a built-in model that needs no key, and a client on a WebSocket."
        )
        async with server_process(self._store, self._directory) as server:
            self._stage.aside(f"[process {server.process.pid} listens at {server.url}]")
            async with connect(server.url, token=server.token) as client, client.events.subscribe() as live:
                session = await client.sessions.create(title="Demo")
                scene = Scene(self._stage, client, live, session)
                await scene.connected()
                await self._ask(scene)
                await self._steer(scene)
                await self._change(scene)
                missed = await self._stop(scene)
                promise, killed = await self._crash(scene, server)
        async with server_process(self._store, self._directory) as server:
            ready = round((monotonic() - killed) * 1_000)
            self._stage.aside(f"[process {server.process.pid} opens the same store, ready {ready} ms after the kill]")
            async with connect(server.url, token=server.token) as client, client.events.subscribe() as live:
                again = Scene(self._stage, client, live, session)
                await again.connected()
                await self._return(scene, again, promise, missed)
        seconds = monotonic() - begun
        self._stage.act(7, "That was it", f"{self._stage.claims} claims, each checked, in {seconds:.1f} seconds. Go on with:")
        self._stage.command(f'{as_typed()} run --model demo/demo "What is the date?"')
        self._stage.command(f"{as_typed()} serve")

    async def _ask(self, scene: Scene) -> None:
        scene.stage.act(1, "Ask", "The receipt comes when the prompt is on disk. Then the answer streams, word by word.")
        receipt = await scene.prompt("Who are you?")
        scene.stage.aside(f"[receipt: event {receipt.admitted_seq} of the session]")
        await scene.until_idle()
        whole = [ended.text for ended in scene.all(TextEnded)]
        scene.stage.claim(
            bool(whole) and list(scene.streamed.values()) == whole,
            f"{scene.deltas} pieces came live; joined they are exactly the text that was stored.",
        )

    async def _steer(self, scene: Scene) -> None:
        scene.stage.act(
            2, "Steer and queue", "A steer joins the work that is running. A queued prompt waits until that is done."
        )
        await scene.prompt("Count to 45.")
        await scene.until_words(8)
        steer = await scene.prompt("Now use the date tool.", "steer")
        queued = await scene.prompt("Thank you, that is all.", "queue")
        await scene.until_idle()
        first, second, third = scene.all(TurnCompleted)[-4:-1]
        at = {id(event.data): seq for seq, event in scene.log.items()}
        promoted = {data.message_id: at[id(data)] for data in scene.all(PromptPromoted)}
        started = [at[id(data)] for data in scene.all(TurnStarted)][-4:]
        scene.stage.claim(
            started[0] < steer.admitted_seq < at[id(first)] < promoted[steer.id] < started[1]
            and any("Now use the date tool." in text for text in scene.texts(second.assistant_message_id)),
            "The steer arrived in mid-answer, and the very next request to the model carried it.",
        )
        (call,), (result,) = scene.all(ToolCalled), scene.all(ToolSucceeded)
        said = " ".join(getattr(content, "text", "") for content in result.content)
        scene.stage.claim(
            at[id(call)] < at[id(result)] < at[id(second)]
            and any(said in text for text in scene.texts(third.assistant_message_id)),
            "The tool ran once: its call was on disk before it started, its result before the model saw it.",
        )
        scene.stage.claim(
            queued.admitted_seq < at[id(first)] and at[id(third)] < promoted[queued.id] < started[3],
            "The queued prompt came at the same time, and had its turn when all else was done.",
        )

    async def _change(self, scene: Scene) -> None:
        scene.stage.act(
            3, "Change the rules", "A file of instructions appears beside the session. Nobody sends it; the next turn has it."
        )
        rules = "Answer in one sentence."
        await trio.Path(self._directory, "AGENTS.md").write_text(rules, encoding="utf-8")
        scene.stage.aside(f"[AGENTS.md now says: {rules}]")
        asked = await scene.prompt("Anything new?")
        await scene.until_idle()
        at = {id(event.data): seq for seq, event in scene.log.items()}
        (told,) = scene.all(ContextUpdated)
        promoted = next(data for data in scene.all(PromptPromoted) if data.message_id == asked.id)
        last = scene.all(TurnCompleted)[-1].assistant_message_id
        scene.stage.claim(
            rules in told.text
            and at[id(promoted)] < at[id(told)] < at[id(scene.all(TurnStarted)[-1])]
            and any(rules in text for text in scene.texts(last)),
            "The model was told once, behind the prompt, and what it was told is an event of the log.",
        )
        scene.stage.claim(
            len(scene.all(EpochStarted)) == 1 and rules not in scene.all(EpochStarted)[0].baseline,
            "What stood at the beginning of the request stays byte for byte, so that a provider's cache goes on.",
        )

    async def _stop(self, scene: Scene) -> Admission:
        scene.stage.act(4, "Stop", "An interrupt stops the answer where it is, and takes nothing from the inbox.")
        await scene.prompt("Count to 1000.")
        await scene.until_words(12)
        waiting = await scene.prompt("What did I miss?", "queue")
        answer = await scene.client.sessions.interrupt(scene.session_id)
        await scene.until_idle()
        kept = (await scene.messages())[-1]
        parts = [part for part in kept.content if isinstance(part, TextPart)] if _answers(kept) else []
        scene.stage.claim(
            answer.interrupted
            and scene.all(TurnInterrupted)[-1].reason == "user"
            and len(parts) == 1
            and parts[0].text == scene.streamed[parts[0].id]
            and "500" not in parts[0].text,
            "The model was cut off in mid-count, and what it had said is kept to the last word.",
        )
        pending = await scene.client.sessions.pending(scene.session_id)
        scene.stage.claim(
            [admission.id for admission in pending] == [waiting.id], "The prompt that was waiting still waits in the inbox."
        )
        return waiting

    async def _crash(self, scene: Scene, server: ServerProcess) -> tuple[Admission, float]:
        """The last receipt, and when the server was killed."""
        scene.stage.act(5, "Crash", "In the middle of another answer we send one more prompt, and kill the server.")
        await scene.prompt("Count to 50.")
        await scene.until_words(12)
        receipt = await scene.prompt("Do you remember me?", id=MessageId("msg_demo_promise"))
        killed = monotonic()
        code = await server.kill()
        scene.stage.aside(f"[receipt: event {receipt.admitted_seq} of the session]")
        scene.stage.aside(f"[process {server.process.pid} is killed: SIGKILL, at once after that receipt]")
        scene.stage.claim(code == -SIGKILL, "It is dead; no handler ran, nothing was flushed.")
        return receipt, killed

    async def _return(self, before: Scene, scene: Scene, promise: Admission, missed: Admission) -> None:
        stage = scene.stage
        stage.act(6, "And everything is still there", "A new process, the same store, a client that asks for the events again.")
        known = await scene.replay()
        stage.claim(
            all(known.get(seq) == event for seq, event in before.log.items()),
            f"All {len(before.log)} events that were seen before the crash are there, unchanged.",
        )
        added = [known[seq] for seq in sorted(known) if seq > max(before.log)]
        stage.claim(
            _gap_free(known) and [data.reason for data in _of(added, TurnInterrupted)] == ["recovery"],
            "The count goes on without a gap, and the half answer is marked as interrupted, not as done.",
        )
        receipt = await scene.client.sessions.prompt(scene.session_id, promise.prompt.text, id=promise.id, resume=False)
        admitted = [data for data in _of(known.values(), PromptAdmitted) if data.message_id == promise.id]
        stage.claim(
            len(admitted) == 1 and receipt == promise,
            "The prompt with the last receipt is there exactly once; sending it again gives the same receipt.",
        )
        stage.tell("Nothing was sent to a model meanwhile: going on is your decision. We say resume.")
        shown = trio.Event()

        async def show() -> None:
            await scene.until_idle()
            shown.set()

        async with Background() as nursery:
            nursery.start_soon(show)
            outcome = await scene.client.sessions.resume(scene.session_id)
            await shown.wait()
            messages = await scene.messages()
            asked = [message.id for message in messages if isinstance(message, UserMessage)]
            stage.claim(
                isinstance(outcome, CompletedOutcome)
                and not await scene.client.sessions.pending(scene.session_id)
                and asked.count(promise.id) == asked.count(missed.id) == 1
                and _answers(messages[-1]),
                "Both waiting prompts are answered, each once. None was lost, none came twice.",
            )
        known = await scene.replay()
        stage.claim(_gap_free(known), f"The session's log now has events 1 to {max(known)}, without a gap.")


class Scene:
    """One session as one client sees it: `log` has its durable events by sequence, from the live stream."""

    def __init__(self, stage: Stage, client: Client, live: EventStream[LiveStream], session: Session) -> None:
        self.stage = stage
        self.client = client
        self.session_id: SessionId = session.id
        self.log: dict[int, Event] = {}
        self.streamed: dict[str, str] = {}
        self.deltas = 0
        self._live = live

    async def connected(self) -> None:
        """Open the live stream; what happens from now on is seen."""
        await self._live.__anext__()

    async def prompt(self, text: str, how: str = "you", id: MessageId | None = None) -> Admission:
        """Send a prompt; its receipt."""
        self.stage.you(text, how)
        delivery = "queue" if how == "queue" else "steer"
        return await self.client.sessions.prompt(self.session_id, text, id=id, delivery=delivery)

    async def until(self, reached: Callable[[Event], bool]) -> None:
        """Show what happens until `reached` says so of an event."""
        async for event in self._live:
            if event.session_id == self.session_id:
                if event.seq is not None:
                    self.log[event.seq] = event
                self._show(event)
                if reached(event):
                    return

    async def until_words(self, number: int) -> None:
        """Until that many more pieces of text have come."""
        enough = self.deltas + number
        await self.until(lambda _: self.deltas >= enough)

    async def until_idle(self) -> None:
        """Until the session is at rest."""
        await self.until(lambda event: isinstance(event.data, Activity) and event.data.state == "idle")

    def _show(self, event: Event) -> None:
        match event.data:
            case TextDelta(part_id=part, delta=delta):
                self.deltas += 1
                self.streamed[part] = self.streamed.get(part, "") + delta
                self.stage.word(delta)
            case ToolCalled(tool=tool):
                self.stage.aside(f"[the runtime calls the {tool} tool]")
            case PromptPromoted(delivery="queue", prompt=prompt):
                self.stage.aside(f"[its turn has come: {prompt.text}]")
            case _:
                pass

    def all(self, kind: type[DataT]) -> list[DataT]:
        """The data of all durable events of one kind, in order."""
        return list(_of((self.log[seq] for seq in sorted(self.log)), kind))

    def texts(self, message_id: MessageId) -> list[str]:
        """The whole texts of one assistant message."""
        return [ended.text for ended in self.all(TextEnded) if ended.assistant_message_id == message_id]

    async def messages(self) -> list[UserMessage | AssistantMessage]:
        """What was said, in order."""
        page = await self.client.sessions.messages(self.session_id, order="asc", limit=200)
        return [message for message in page.items if isinstance(message, UserMessage | AssistantMessage)]

    async def replay(self) -> dict[int, Event]:
        """All durable events from the first to now."""
        found: dict[int, Event] = {}
        async with self.client.sessions.events(self.session_id) as events:
            async for event in events:
                if isinstance(event.data, Synced):
                    break
                found[event.seq or 0] = event
        return found


def _of(events: Iterable[Event], kind: type[DataT]) -> Iterator[DataT]:
    return (event.data for event in events if isinstance(event.data, kind))


def _answers(message: UserMessage | AssistantMessage) -> TypeGuard[AssistantMessage]:
    return isinstance(message, AssistantMessage)


def _gap_free(log: dict[int, Event]) -> bool:
    return sorted(log) == list(range(1, len(log) + 1))
