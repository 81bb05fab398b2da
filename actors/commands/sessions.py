"""`steerway sessions list` and `show`: look at what is stored, here or on a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import ask, check_place, json_option, reader, server_options, store_options
from .output import brief, moment, plain, remark, say, say_json, table

if TYPE_CHECKING:
    from ...protocol.values import AssistantMessage, Message, Page, PendingItem, Session
    from ..client.client import Client


@click.group()
def sessions() -> None:
    """List and show sessions."""


@sessions.command("list")
@click.option("--directory", help="Only sessions of this location.")
@click.option("--search", help="Only sessions with this in their title.")
@click.option("--order", type=click.Choice(["asc", "desc"]), help="By creation time; default desc.")
@click.option("--limit", type=click.IntRange(1, 200), help="How many; default 50.")
@click.option("--cursor", help="Go on from an earlier page; takes no other filter.")
@store_options
@server_options
@json_option
def list_sessions(
    db: Path | None, config: Path | None, url: str | None, token_file: Path | None, as_json: bool, **query: Any
) -> None:
    """List sessions, newest first."""
    from ...protocol.operations import ListSessions

    check_place(url, token_file, db)
    if url is not None:
        page: Page[Session] = ask(url, token_file, lambda client: client.sessions.list(**query))
    else:
        store = reader(config, db)
        try:
            page = store.sessions_page(ListSessions(**query))
        finally:
            store.close()
    if as_json:
        say_json(page)
        return
    if not page.items:
        remark("There are no such sessions.")
        return
    table(
        ["SESSION", "UPDATED", "EVENTS", "MODEL", "TITLE"],
        [[item.id, moment(item.updated), str(item.head), str(item.model or "-"), item.title] for item in page.items],
        cut=True,
    )
    if page.next is not None:
        remark(f"There are more: --cursor {page.next}")


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many of the last messages.")
@store_options
@server_options
@json_option
def show_session(
    session_id: str,
    limit: int,
    db: Path | None,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Show a session: what it is, its inbox, and its last messages."""
    check_place(url, token_file, db)
    if url is not None:
        session, pending, page = ask(url, token_file, lambda client: _asked(client, session_id, limit))
    else:
        session, pending, page = _read(config, db, session_id, limit)
    messages = page.items[::-1]
    if as_json:
        say_json({"session": session, "pending": pending, "messages": messages})
        return
    for line in _described(session):
        say(line)
    if page.next is not None:
        say(f"\n(the last {len(messages)} messages)")
    for message in messages:
        say()
        for line in _told(message):
            say(line)
    for item in pending:
        say(_waiting(item))


async def _asked(client: Client, session_id: str, limit: int) -> tuple[Session, Iterable[PendingItem], Page[Message]]:
    from ...protocol.values import SessionId

    known = SessionId(session_id)
    session = await client.sessions.get(known)
    return session, await client.sessions.pending(known), await client.sessions.messages(known, limit=limit)


def _read(
    config: Path | None, db: Path | None, session_id: str, limit: int
) -> tuple[Session, Iterable[PendingItem], Page[Message]]:
    from ...protocol.operations import ListMessages
    from ...protocol.values import SessionId

    known = SessionId(session_id)
    store = reader(config, db)
    try:
        session = store.session(known)
        return session, store.pending(known), store.messages_page(ListMessages(session_id=known, limit=limit))
    finally:
        store.close()


def _waiting(item: PendingItem) -> str:
    from ...protocol.values import Admission, MoveControl

    match item:
        case Admission():
            return f"\nwaiting ({item.delivery})  {item.id}\n{_indented(item.prompt.text)}"
        case MoveControl():
            return f"\nwaiting (move)  {item.id}\n{_indented(item.location.directory)}"
        case _:
            return f"\nwaiting (compact)  {item.id}"


def _described(session: Session) -> Iterator[str]:
    yield f"session    {session.id}"
    yield f"title      {plain(session.title)}"
    yield f"directory  {plain(session.location.directory)}"
    yield f"created    {moment(session.created)}, last changed {moment(session.updated)}"
    yield f"model      {session.model or '(the default)'}"
    tokens = session.tokens
    budget = f" of a budget of ${session.budget:.4f}" if session.budget is not None else ""
    if session.cost or budget:
        yield f"cost       ${session.cost:.4f}{budget}"
    yield f"events     {session.head}; {tokens.input} tokens in, {tokens.output + tokens.reasoning} out"


def _told(message: Message) -> Iterator[str]:
    from ...protocol.values import (
        AssistantMessage,
        CompactionMessage,
        ModelSwitchedMessage,
        SyntheticMessage,
        SystemMessage,
        UserMessage,
    )

    match message:
        case UserMessage():
            yield f"user  {moment(message.created)}"
            yield _indented(message.text)
            for file in message.files or ():
                yield f"  [{plain(file.name or 'file')}: {file.mime}, {len(file.data)} bytes]"
        case SyntheticMessage():
            yield f"runtime  {moment(message.created)}"
            yield _indented(message.text)
        case SystemMessage():
            yield f"context  {moment(message.created)}"
            yield _indented(message.text)
        case CompactionMessage(summary=summary, error=error):
            yield f"compaction ({message.reason})  {moment(message.created)}"
            yield _indented(summary or (error.message if error is not None else "(running)"))
        case ModelSwitchedMessage():
            yield f"model switched to {message.model}"
        case AssistantMessage():
            yield f"assistant ({message.model})  {moment(message.created)}"
            yield from _parts(message)
            if message.error is not None:
                yield f"  [{message.error.type}: {plain(message.error.message)}]"
        case _:
            yield f"[{message.__struct_config__.tag}]"


def _parts(message: AssistantMessage) -> Iterator[str]:
    import msgspec

    from ...protocol.values import ReasoningPart, TextPart, ToolCompleted, ToolError, ToolPart

    for part in message.content:
        match part:
            case TextPart():
                yield _indented(part.text)
            case ReasoningPart():
                yield f"  [thinks: {brief(part.text, 200)}]"
            case ToolPart(name=name, state=state):
                input = getattr(state, "input", {})
                shown = brief(input if isinstance(input, str) else msgspec.json.encode(input).decode(), 120)
                yield f"  [tool {plain(name)} {shown}]"
                match state:
                    case ToolCompleted(content=content):
                        texts = " ".join(getattr(item, "text", "(a file)") for item in content)
                        yield f"    {brief(texts, 300)}"
                    case ToolError(error=error):
                        yield f"    failed: {brief(error.message, 300)}"
                    case _:
                        yield f"    {state.__struct_config__.tag}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in plain(text).splitlines())
