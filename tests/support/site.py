"""A server in a process of its own, made to be killed, with a provider that answers each conversation as a test says.

Rules:
- The provider runs in the test's loop; while a server starts, that loop stands still.
- `shell` is allowed, `write` has to be asked for. `guard` is a file that a command can wait on: it is removed at the end, so
  that no command outlives its test, killed server or not.
- The doctor looks at the store when the site is left.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from steerway import Client, connect
from support.answers import Answer, answer, text
from support.doctor import assert_healthy
from support.house import said
from support.program import Home, Serving
from support.provider import Provider, Request, open_provider

READ = ("read", '{"path": "notes.txt"}')
WRITE = ("write", '{"path": "new.txt", "content": "new"}')
WRITE_TOO = ("write", '{"path": "other.txt", "content": "new"}')
QUESTION = ("question", '{"questions": [{"question": "Which one?", "header": "Choice"}]}')
BUSY = ("shell", '{"command": "echo up; while [ -e guard ]; do sleep 0.2; done"}')
"""Runs until the test removes its guard: the kill of its server does not end it."""


class Plans:
    """A responder that answers by what the conversation began with; what has no plan (any more) is answered "Done."."""

    def __init__(self) -> None:
        self._plans: dict[str, Callable[[Request], Answer]] = {}

    def plan(self, opening: str, respond: Callable[[Request], Answer]) -> None:
        """Answer the requests of the conversation whose first prompt is `opening`."""
        self._plans[opening] = respond

    def forget(self) -> None:
        """From now on every answer is "Done."."""
        self._plans.clear()

    def __call__(self, request: Request) -> Answer:
        opening = next((line for role, line in said(request) if role == "user"), "")
        respond = self._plans.get(opening)
        return answer(text("Done.")) if respond is None else respond(request)


class Site:
    """A home with a configuration, a provider, and what its conversations are answered."""

    def __init__(self, folder: Path, provider: Provider, plans: Plans, extra: str) -> None:
        self.provider = provider
        self.plans = plans
        self.home = Home(folder)
        (self.home.work / "notes.txt").write_text("Notes.\n")
        self.guard = self.home.work / "guard"
        self.guard.touch()
        self._configuration = folder / "steerway.toml"
        self._configuration.write_text(
            f"""
            [models]
            default = "scripted/scripted"
            [providers.scripted]
            protocol = "openai-chat"
            base_url = "{provider.base_url}"
            {extra}
            [[agents.build.permissions]]
            action = "shell"
            resource = "*"
            effect = "allow"
            """
        )
        self.arguments = ("--config", str(self._configuration))

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[tuple[Serving, Client]]:
        """A server, and a client of it."""
        with self.home.serving(*self.arguments) as serving:
            async with connect(serving.url, token=serving.token) as client:
                yield serving, client


@asynccontextmanager
async def open_site(folder: Path, extra: str = "") -> AsyncGenerator[Site]:
    """A site in this folder; `extra` are lines of its configuration."""
    plans = Plans()
    async with open_provider(respond=plans) as provider:
        site = Site(folder / "home", provider, plans, extra)
        try:
            yield site
        finally:
            site.guard.unlink(missing_ok=True)
    assert_healthy(site.home.store)
