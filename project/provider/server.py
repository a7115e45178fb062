"""The simulated provider in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from project.provider.connection import Connection
from project.provider.log import Entry, Totals
from project.provider.script import Chooser, Reply
from project.provider.site import Site

HOST = "127.0.0.1"
BACKLOG = 512
CHOOSER_THREADS = 64
QUIET_SECONDS = 5.0


class Provider:
    """`with Provider() as provider:` serves on a free loopback port until the block ends.

    Point OpenAI clients at `openai_url`, Anthropic clients at `anthropic_url`; any key will do.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._site = Site()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="provider", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def anthropic_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def openai_url(self) -> str:
        return f"{self.anthropic_url}/v1"

    def script(
        self, replies: Iterable[Reply] | Chooser = (), *, default: Reply | None = None
    ) -> None:
        """Answer with `replies` in order of arrival, then with `default` for ever.

        `replies` may be a function that gets each ModelRequest in a thread of its own, and returns
        a Reply or None for the default.
        """
        self._site.script.set(replies, default)

    def reset(self) -> None:
        """Forget the log, the script and every prompt prefix."""
        self._site.reset()

    def log(self) -> list[Entry]:
        """What reached the provider, in order of arrival."""
        return self._site.log.entries()

    def totals(self) -> Totals:
        return self._site.log.totals()

    def wait_until_quiet(self, timeout_seconds: float = QUIET_SECONDS) -> list[Entry]:
        """The log once no request is open any more; TimeoutError if that takes too long."""
        wait_until_quiet(self.totals, timeout_seconds)
        return self.log()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as problem:
            self._problem = problem
            if self._ready.is_set():
                raise
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        loop.set_default_executor(ThreadPoolExecutor(CHOOSER_THREADS, "provider-script"))
        site = self._site
        server = await loop.create_server(
            lambda: Connection(site), HOST, self.port, backlog=BACKLOG
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        while site.connections:
            for connection in site.connections:
                connection.abort()
            await asyncio.sleep(0)


def wait_until_quiet(totals: Callable[[], Totals], timeout_seconds: float) -> None:
    """Returns when no request is open; raises TimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    while totals().open:
        if time.monotonic() > deadline:
            raise TimeoutError(f"requests still open after {timeout_seconds} seconds")
        time.sleep(0.005)
