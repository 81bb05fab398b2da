"""`steerway run`: one prompt, its answer streamed to the terminal; the exit code tells the outcome.

Rules:
- The answer's text goes to standard output, as it comes; thoughts, tools, errors and where it is kept go to standard error.
- It ends when the session is idle: 0 completed, 1 failed, 130 interrupted.
- What the session asks for is answered here (see `answering`). `--permissions` also is the policy of a store that is opened for
  the run; at a server it only says how this client answers.
- Ctrl-C and SIGTERM interrupt the session and wait until that is settled; a second one ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from .answering import Answering, Policy, Terminal, has_terminal
from .failures import FAILED, INTERRUPTED, WRONG_USE, Refusal, advised
from .options import asking, check_place, read_settings, server_options, store_options
from .output import brief, plain, remark, say_json

if TYPE_CHECKING:
    import trio

    from ...protocol.values import Admission, Event, ModelRef, Outcome, Session
    from ..client.client import Client
    from ..configuration import Configuration


class _Plan(NamedTuple):
    prompt: str
    session: str | None
    model: str | None
    agent: str | None
    directory: Path | None
    as_json: bool
    url: str | None
    token_file: Path | None
    configuration: Configuration | None
    permissions: Policy | None
    take_over: bool


@click.command()
@click.argument("prompt", nargs=-1, required=True, metavar="PROMPT")
@click.option("--session", metavar="ID", help="Go on with this session; default a new one.")
@click.option("--model", metavar="P/M", help="The model, as provider/model; demo/demo needs no key and no network.")
@click.option("--agent", metavar="A", help="The agent of a new session; default build.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where a new session works; default here.",
)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--permissions",
    type=click.Choice(["ask", "allow", "deny"]),
    help="What becomes of a permission that is asked for; default ask on a terminal, else deny.",
)
@click.option("--take-over", is_flag=True, help="Go past an owner of the store that does not answer.")
@store_options
@server_options
def run(
    prompt: tuple[str, ...],
    session: str | None,
    model: str | None,
    agent: str | None,
    directory: Path | None,
    output: Literal["text", "json"],
    permissions: Policy | None,
    take_over: bool,
    db: Path | None,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Send PROMPT (- for standard input) and stream the answer.

    Works on the store in this process, or on the server at --url. With --format json, one event a line. Ctrl-C interrupts.
    What needs a permission is asked for on the terminal; without one it is denied, and the model goes on without it.
    """
    import trio

    from .logs import configure_logs

    check_place(url, token_file, db)
    if session is not None and (agent is not None or directory is not None):
        raise click.UsageError("--agent and --directory are for a new session; leave out --session.")
    if url is None and directory is not None and not directory.is_dir():
        raise click.BadParameter(f"{directory} is no directory.", param_hint="--directory")
    given, *more = prompt
    if more:
        raise click.UsageError("The prompt is one argument: put it in quotes.")
    text = sys.stdin.read() if given == "-" else given
    if not text.strip():
        raise click.UsageError("The prompt is empty.")
    if permissions == "ask" and url is None and not has_terminal():
        raise click.UsageError("--permissions ask needs a terminal, or a server (--url) whose other clients may answer.")
    flags: dict[str, object] = {"permissions.policy": permissions}
    configuration = None if url is not None else read_settings(config, db, flags).configuration
    if configuration is not None and session is None:
        _check_choice(configuration, model, agent)
    configure_logs()
    plan = _Plan(
        text,
        session,
        model,
        agent,
        directory and directory.absolute(),
        output == "json",
        url,
        token_file,
        configuration,
        permissions,
        take_over,
    )
    sys.exit(trio.run(_run, plan))


def _check_choice(configuration: Configuration, model: str | None, agent: str | None) -> None:
    """Raises before anything is stored what a new session's first turn would fail with."""
    from ..agents import DEFAULT_AGENT
    from ..models.catalog import Catalog
    from ..tools.permissions import PLAN_AGENT

    catalog = Catalog(configuration, os.environ)
    known = {DEFAULT_AGENT, PLAN_AGENT, *configuration.agents}
    name = agent or DEFAULT_AGENT
    if name not in known:
        raise Refusal(f"There is no agent {name}; there are {', '.join(sorted(known))}.", WRONG_USE)
    settings = configuration.agents.get(name)
    chosen = model or (settings.model if settings is not None else None)
    catalog.resolve(None if chosen is None else catalog.parse(chosen))


async def _run(plan: _Plan) -> int:
    import trio

    from ..client.scope import Background

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, trio.CancelScope() as scope:
        async with Background() as nursery:
            stopper = _Stopper(scope)
            nursery.start_soon(stopper.heed, signals)
            async with _client(plan) as client:
                session = await _session(client, plan)
                return await _answered(client, session, plan, stopper)
    remark("Interrupted before the prompt's receipt.")
    return INTERRUPTED


class _Stopper:
    """What a signal does: interrupt the session once there is one, else give up."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.interrupt: Callable[[], Awaitable[object]] | None = None
        self._scope = scope
        self._asked = False

    async def heed(self, signals: AsyncIterator[int]) -> None:
        from ...protocol.values.errors import SteerwayError

        async for _ in signals:
            if self._asked:
                os._exit(INTERRUPTED)
            self._asked = True
            if self.interrupt is None:
                self._scope.cancel()
            else:
                try:
                    await self.interrupt()
                except SteerwayError:
                    self._scope.cancel()


@asynccontextmanager
async def _client(plan: _Plan) -> AsyncGenerator[Client]:
    if plan.url is not None:
        async with asking(plan.url, plan.token_file) as client:
            yield client
    else:
        from ..runtime import open_runtime

        async with open_runtime(
            configuration=plan.configuration, directory=plan.directory, take_over=plan.take_over
        ) as runtime:
            yield runtime


async def _session(client: Client, plan: _Plan) -> Session:
    from ...protocol.values import Location, SessionId
    from ..configuration import Configuration
    from ..models.catalog import Catalog

    model: ModelRef | None = None
    if plan.model is not None:
        model = Catalog(plan.configuration or Configuration(), os.environ).parse(plan.model)
    if plan.session is not None:
        session = await client.sessions.get(SessionId(plan.session))
        return session if model in (None, session.model) else await client.sessions.switch_model(session.id, model)
    location = Location(directory=str(plan.directory)) if plan.directory is not None else None
    return await client.sessions.create(location=location, title=brief(plan.prompt, 60), agent=plan.agent, model=model)


async def _answered(client: Client, session: Session, plan: _Plan, stopper: _Stopper) -> int:
    """Prompt the session and show what happens until it is idle; the exit code."""
    from contextlib import aclosing

    from ..client.scope import Background
    from .watch import watch

    terminal = Terminal() if has_terminal() else None
    shown = _Json() if plan.as_json else _Text(terminal)
    ending = _Ending(client, session)
    answering = Answering(client, plan.permissions, terminal, shown.end)
    async with Background() as nursery, aclosing(watch(client, session.id, session.head)) as happening:
        with ending.scope:
            async for event in happening:
                if event is not None:
                    shown.show(event)
                    answering.saw(event)
                    ending.saw(event)
                elif ending.sent is None:
                    ending.sent = await client.sessions.prompt(session.id, plan.prompt)
                    stopper.interrupt = lambda: client.sessions.interrupt(session.id)
                    nursery.start_soon(ending.wait)
                    nursery.start_soon(answering.run)
        shown.end()
    pending = await client.sessions.pending(session.id)
    code = _told(ending.session.last_outcome)
    if any(ending.sent is not None and waiting.id == ending.sent.id for waiting in pending):
        remark("The prompt is kept and waits in the session.")
    if not plan.as_json:
        remark(f"session {session.id}")
    return code


class _Ending:
    """Knows when all is shown: the session is idle, and its events up to then have been seen."""

    def __init__(self, client: Client, session: Session) -> None:
        import trio

        self.session = session
        self.sent: Admission | None = None
        self.scope = trio.CancelScope()
        self._client = client
        self._seen = session.head
        self._idle = False

    async def wait(self) -> None:
        await self._client.sessions.wait(self.session.id)
        self.session = await self._client.sessions.get(self.session.id)
        self._idle = True
        self._check()

    def saw(self, event: Event) -> None:
        self._seen = event.seq or self._seen
        self._check()

    def _check(self) -> None:
        if self._idle and self._seen >= self.session.head:
            self.scope.cancel()


def _told(outcome: Outcome | None) -> int:
    """Say how it ended, if not well; the exit code."""
    from ...protocol.values import FailedOutcome, InterruptedOutcome
    from ...protocol.values.failure import MODEL_NOT_SELECTED

    match outcome:
        case FailedOutcome(error=error):
            tag = "ModelNotSelectedError" if error.type == MODEL_NOT_SELECTED else ""
            remark(f"steerway: {advised(tag, plain(error.message))}")
            return FAILED
        case InterruptedOutcome():
            remark("Interrupted.")
            return INTERRUPTED
        case _:
            return 0


class _Json:
    """One event a line."""

    def show(self, event: Event) -> None:
        from ...protocol.values.event import encode_event_json

        say_json(encode_event_json(event))

    def end(self) -> None:
        pass


class _Text:
    """The answer's text as it comes, each part once; beside it, on standard error, what else happens."""

    def __init__(self, terminal: Terminal | None) -> None:
        self._asking = terminal
        self._shown: dict[str, int] = {}
        self._terminal = sys.stdout.isatty()
        self._fresh = True

    def show(self, event: Event) -> None:
        import msgspec

        from ...protocol.values import (
            CompactionCompleted,
            CompactionFailed,
            CompactionStarted,
            ContextUpdated,
            RetryScheduled,
            TextDelta,
            TextEnded,
            ToolCalled,
            ToolFailed,
            ToolSucceeded,
        )

        match event.data:
            case TextDelta(part_id=part, offset=offset, delta=delta):
                self._write(part, offset, delta)
            case TextEnded(part_id=part, text=text):
                self._write(part, 0, text)
                self.end()
            case ToolCalled(tool=tool, input=input):
                self._remark(f"  · {plain(tool)} {brief(msgspec.json.encode(input).decode(), 100)}")
            case ToolSucceeded(content=content):
                texts = " ".join(getattr(item, "text", "(a file)") for item in content)
                self._remark(f"    {brief(texts, 100)}")
            case ToolFailed(error=error):
                self._remark(f"    failed: {brief(error.message, 100)}")
            case RetryScheduled(error=error, attempt=attempt, at=at):
                wait = max(0, at - event.created) / 1000
                self._remark(f"  · {brief(error.message, 200)} Attempt {attempt} in {wait:.0f} s.")
            case ContextUpdated(text=text):
                self._remark(f"  · the model is told: {brief(text, 200)}")
            case CompactionStarted():
                self._remark("  · the history is summarised")
            case CompactionCompleted(summary=summary):
                self._remark(f"    {brief(summary, 100)}")
            case CompactionFailed(error=error):
                self._remark(f"    failed: {brief(error.message, 100)}")
            case _:
                pass

    def _write(self, part: str, offset: int, text: str) -> None:
        already = self._shown.get(part, 0)
        if offset > already:
            return  # a delta before it was lost: the whole text comes when it has ended
        more = text[already - offset :]
        self._shown[part] = already + len(more)
        if more:
            self._step_aside()
            self._fresh = False
            sys.stdout.write(plain(more) if self._terminal else more)
            sys.stdout.flush()

    def _remark(self, text: str) -> None:
        self._step_aside()
        remark(text)

    def _step_aside(self) -> None:
        if self._asking is not None:
            self._asking.leave()

    def end(self) -> None:
        """End the line that is being written, if any."""
        if not self._fresh:
            self._fresh = True
            sys.stdout.write("\n")
            sys.stdout.flush()
