"""The simulated provider in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from project.provider.log import Entry, Totals
from project.provider.script import Reply
from project.provider.server import QUIET_SECONDS, wait_until_quiet

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 10.0


class RemoteProvider:
    """A provider serving at `url` ("http://127.0.0.1:PORT"), with the methods of Provider."""

    def __init__(self, url: str) -> None:
        self.anthropic_url = url.rstrip("/")

    @property
    def openai_url(self) -> str:
        return f"{self.anthropic_url}/v1"

    def script(self, replies: Iterable[Reply] = (), *, default: Reply | None = None) -> None:
        """Answer with `replies` in order of arrival, then with `default` for ever."""
        document = {
            "replies": [reply.to_json() for reply in replies],
            "default": None if default is None else default.to_json(),
        }
        self._call("POST", "script", document)

    def reset(self) -> None:
        """Forget the log, the script and every prompt prefix."""
        self._call("POST", "reset", {})

    def log(self) -> list[Entry]:
        """What reached the provider, in order of arrival."""
        return [Entry(**entry) for entry in self._call("GET", "log")]

    def totals(self) -> Totals:
        return Totals(**self._call("GET", "totals"))

    def wait_until_quiet(self, timeout_seconds: float = QUIET_SECONDS) -> list[Entry]:
        """The log once no request is open any more; TimeoutError if that takes too long."""
        wait_until_quiet(self.totals, timeout_seconds)
        return self.log()

    def _call(self, method: str, control: str, document: Any = None) -> Any:
        connection = HTTPConnection(urlsplit(self.anthropic_url).netloc, timeout=TIMEOUT_SECONDS)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, f"/_control/{control}", body)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(answer["error"])
        return answer


class ProviderProcess(RemoteProvider):
    """`with ProviderProcess() as provider:` serves from a process of its own.

    The process ends with the block, and also when this process dies in any way: its standard input
    closes then.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__("")
        self._port = port

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "project.provider", "--port", str(self._port)]
        self._process = subprocess.Popen(
            [*command, "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.anthropic_url = self._process.stdout.readline().strip()
        if not self.anthropic_url:
            self._end()
            raise RuntimeError("the simulated provider did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
