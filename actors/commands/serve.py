"""`steerway serve`: the gateway in the foreground, until a signal.

Rules:
- The one line on standard output, and the one for `--ready-fd`, come when connections are accepted, never before.
- SIGTERM and SIGINT stop in order; then the exit code is 0 for SIGTERM, which is how a supervisor stops a service, and 130 for
  SIGINT. A second signal ends the process at once, with 130: what was committed is safe, as after any crash.
- Other machines are only served with a token file that was named on purpose (wire contract, "Who may speak").
- `connect()` without arguments finds this server through the state folder while it runs, unless `--no-announce` is given.
"""

from __future__ import annotations

import os
import signal
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .failures import INTERRUPTED, Refusal
from .options import FILE, read_settings, store_options
from .output import say

if TYPE_CHECKING:
    import trio

    from ..configuration import Configuration


class _Plan(NamedTuple):
    configuration: Configuration
    token: str
    token_file: Path
    directory: Path
    ssl_context: ssl.SSLContext | None
    take_over: bool
    ready_fd: int | None
    announce: bool


@click.command()
@click.option("--host", help="The address to listen on; default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; default 4747, 0 takes a free one.")
@store_options
@click.option("--token-file", type=FILE, metavar="FILE", help="Holds the token; made when it is missing.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where sessions work that name no location; default here.",
)
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Certificate chain (PEM): serve wss://.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its private key (PEM), when it is not in the same file.")
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", show_default=True)
@click.option("--ready-fd", type=click.IntRange(0), metavar="N", help="Gets one JSON line {url, token_file} when it accepts.")
@click.option("--take-over", is_flag=True, help="Go past an owner of the store that does not answer.")
@click.option("--announce/--no-announce", default=True, help="Let programs on this machine find this server.")
def serve(
    host: str | None,
    port: int | None,
    db: Path | None,
    config: Path | None,
    token_file: Path | None,
    directory: Path,
    tls_cert: Path | None,
    tls_key: Path | None,
    log_format: Any,
    ready_fd: int | None,
    take_over: bool,
    announce: bool,
) -> None:
    """Serve sessions over a WebSocket until a signal.

    SIGTERM ends it with exit code 0, SIGINT with 130.
    """
    import logging

    import trio

    from ..client.local import ensure_token
    from .logs import configure_logs

    configure_logs(log_format, level=logging.INFO)
    configuration = read_settings(config, db, {"gateway.host": host, "gateway.port": port}).configuration
    if token_file is None and not _is_loopback(configuration.gateway.host):
        raise click.UsageError(
            f"Listening on {configuration.gateway.host} lets other machines in: say with --token-file which token they need."
        )
    if ready_fd is not None:
        _check_descriptor(ready_fd)
    ssl_context = _ssl_context(tls_cert, tls_key)
    token, found = ensure_token(token_file)
    plan = _Plan(configuration, token, found.absolute(), directory.absolute(), ssl_context, take_over, ready_fd, announce)
    received = trio.run(_serve, plan)
    if received == signal.SIGINT:
        sys.exit(INTERRUPTED)


async def _serve(plan: _Plan) -> int:
    """Serve until a signal; which one it was."""
    import structlog
    import trio

    from ..client.local import remove_local, write_local
    from ..client.scope import Background
    from ..runtime import open_runtime

    log: Any = structlog.get_logger("steerway.serve")
    gateway = plan.configuration.gateway
    stop = trio.Event()
    received: list[int] = []
    announced: str | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with Background() as nursery:
            nursery.start_soon(_heed, signals, stop, received)
            try:
                async with open_runtime(
                    configuration=plan.configuration, directory=plan.directory, take_over=plan.take_over
                ) as runtime:
                    try:
                        listening = await runtime.listen(
                            host=gateway.host,
                            port=gateway.port,
                            token=plan.token,
                            hosts=gateway.hosts,
                            origins=gateway.origins,
                            ssl_context=plan.ssl_context,
                        )
                    except OSError as error:
                        where, why = f"{gateway.host}:{gateway.port}", str(error.strerror or error).rstrip(".")
                        raise Refusal(f"{where} cannot be listened on ({why}); --port and --host name another.") from None
                    if plan.token_file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                        log.warning("others can read the token; chmod 600 would stop that", token_file=str(plan.token_file))
                    if plan.announce:
                        try:
                            write_local(listening.url, plan.token_file)
                            announced = listening.url
                        except OSError as error:
                            log.warning("programs on this machine cannot find this server", error=str(error))
                    _tell(listening.url, plan)
                    await stop.wait()
                    log.info("stopping", signal=signal.Signals(received[0]).name)
            finally:
                if announced is not None:
                    remove_local(announced)
    return received[0]


async def _heed(signals: AsyncIterator[int], stop: trio.Event, received: list[int]) -> None:
    async for number in signals:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        stop.set()


def _tell(url: str, plan: _Plan) -> None:
    import msgspec

    from ..client.local import LocalServer

    say(f"Steerway is listening at {url} and wants the token in {plan.token_file}")
    if plan.ready_fd is not None:
        line = msgspec.json.encode(LocalServer(url=url, token_file=str(plan.token_file)))
        os.write(plan.ready_fd, line + b"\n")
        if plan.ready_fd > 2:
            os.close(plan.ready_fd)


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_descriptor(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        raise click.BadParameter(f"{descriptor} is not open in this process.", param_hint="--ready-fd") from None


def _ssl_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise click.UsageError("--tls-key goes with --tls-cert.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise Refusal(
            f"The certificate cannot be used ({error.strerror or error}); --tls-cert and --tls-key take PEM files."
        ) from None
    return context
