"""`steerway events`: the durable events of a session, from the store or from a server, and on with `--follow`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import Refusal
from .options import ask, asking, check_place, json_option, reader, server_options, store_options
from .output import brief, moment, say, say_json

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from ...protocol.values import Event
    from ..client.client import Client


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--after", type=click.IntRange(0), default=0, metavar="N", help="Only events behind this sequence.")
@click.option("--follow", is_flag=True, help="Go on with new events; needs a running server, here or at --url.")
@store_options
@server_options
@json_option
def events(
    session_id: str,
    after: int,
    follow: bool,
    db: Path | None,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Print the durable events of a session, in order.

    With --json, one event a line. --follow asks the server at --url, or the one that runs on this machine.
    """
    import trio

    check_place(url, token_file, db)
    if follow:
        if db is not None or config is not None:
            raise click.UsageError(
                "--follow asks a server, because a store says nothing of new events; leave out --db and --config."
            )
        trio.run(_follow, _server(url, token_file), session_id, after, as_json)
    elif url is not None:
        ask(url, token_file, lambda client: _replay(client, session_id, after, as_json))
    else:
        _read(config, db, session_id, after, as_json)


def _read(config: Path | None, db: Path | None, session_id: str, after: int, as_json: bool) -> None:
    from ...protocol.values import SessionId
    from ...protocol.values.event import decode_event

    store = reader(config, db)
    try:
        while page := store.events_page(SessionId(session_id), after):
            for seq, body in page:
                _print(decode_event(body), as_json)
                after = seq
    finally:
        store.close()


async def _replay(client: Client, session_id: str, after: int, as_json: bool) -> None:
    from ...protocol.values import SessionId, Synced

    async with client.sessions.events(SessionId(session_id), after=after) as stream:
        async for event in stream:
            if isinstance(event.data, Synced):
                return
            _print(event, as_json)


async def _follow(server: AbstractAsyncContextManager[Client], session_id: str, after: int, as_json: bool) -> None:
    from ...protocol.values import SessionId, Synced

    async with server as client, client.sessions.follow(SessionId(session_id), after=after) as stream:
        async for event in stream:
            if not isinstance(event.data, Synced):
                _print(event, as_json)


def _server(url: str | None, token_file: Path | None) -> AbstractAsyncContextManager[Client]:
    from ...protocol.values.errors import ClientError
    from ..client.local import read_local

    if url is not None:
        return asking(url, token_file)
    try:
        local, _ = read_local()
    except ClientError:
        raise Refusal(
            "Following needs a running server, and none is known here: start `steerway serve`, or name one with --url."
        ) from None
    return asking(local, None)


def _print(event: Event, as_json: bool) -> None:
    import msgspec

    from ...protocol.values.event import encode_event_json

    encoded = encode_event_json(event)
    if as_json:
        say_json(encoded)
        return
    data = msgspec.json.encode(msgspec.json.decode(encoded)["data"]).decode()
    say(f"{event.seq or '':>6}  {moment(event.created)}  {event.type.removeprefix('session.'):<18}  {brief(data, 160)}")
