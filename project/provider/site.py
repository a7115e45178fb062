"""Everything the provider serves: model requests, the list of models, the control plane."""

from __future__ import annotations

import asyncio
import re
from secrets import token_hex
from typing import Any

from project.provider import anthropic, control, http, openai
from project.provider.connection import Connection
from project.provider.event import compact
from project.provider.exchange import Exchange
from project.provider.log import Entry, Log
from project.provider.prompt import PromptCache
from project.provider.request import Api, BadRequest, ModelRequest, api_of, parse
from project.provider.script import Chooser, Reply, Script
from project.provider.shapes import shape_of

BACKGROUND = re.compile(r"/v1/responses/(?P<id>[^/]+)(?P<cancel>/cancel)?")
JSON = {"content-type": "application/json"}


class Site:
    """Lives on one event loop; `log` and `script` may be used from any thread."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.log = Log()
        self.script = Script()
        self._prompts = PromptCache()
        self._background: dict[str, list[dict[str, Any]]] = {}
        self._run = token_hex(4)

    def reset(self) -> None:
        """Forget the log, the script and every prompt prefix."""
        self.script.set()
        self.log.clear()
        self._prompts.clear()
        self._background.clear()

    def receive(self, connection: Connection, head: http.Head, body: bytes) -> None:
        api = api_of(head.path) if head.method == "POST" else None
        if api is not None:
            self._receive_model_request(connection, api, head, body)
        elif head.path.startswith(control.PREFIX):
            self._send(connection, *control.answer(self, head, body))
        else:
            self._send(connection, *self._other(head, body))

    def _receive_model_request(
        self, connection: Connection, api: Api, head: http.Head, body: bytes
    ) -> None:
        entry = self.log.open(head.path, api, len(body), head.headers)
        try:
            request = parse(api, head.path, body)
        except BadRequest as problem:
            entry.status = 400
            self.log.finish(entry, "error")
            self._send(connection, 400, shape_of(api).error(400, str(problem), self._id(entry)))
            return
        entry.model, entry.stream = request.model, request.stream
        entry.max_output_tokens, entry.choices = request.max_output_tokens, request.choices
        entry.messages = len(request.messages)
        chooser = self.script.chooser
        if chooser is None:
            self._exchange(connection, request, entry, self.script.take()).begin()
        else:
            chosen = self._choose(connection, request, entry, chooser)
            connection.start(chosen, lambda outcome: self.log.finish(entry, outcome))

    async def _choose(
        self, connection: Connection, request: ModelRequest, entry: Entry, chooser: Chooser
    ) -> None:
        """The function may block (a test's own gate), so it runs in a thread."""
        reply = await asyncio.to_thread(chooser, request)
        exchange = self._exchange(connection, request, entry, reply or self.script.default)
        await exchange.run()

    def _exchange(
        self, connection: Connection, request: ModelRequest, entry: Entry, reply: Reply
    ) -> Exchange:
        prompt = self._prompts.read(request)
        run = self._id(entry)
        return Exchange(connection, request, reply, prompt, entry, self.log, run, self._background)

    def _id(self, entry: Entry) -> str:
        return f"{self._run}{entry.number:06d}"

    def _other(self, head: http.Head, body: bytes) -> tuple[int, Any]:
        shape = anthropic if "anthropic-version" in head.headers else openai
        if head.method == "GET" and head.path == "/v1/models":
            return 200, shape.models()
        if head.method == "GET" and head.path.startswith("/v1/models/"):
            return 200, shape.model(head.path.removeprefix("/v1/models/"))
        if found := BACKGROUND.fullmatch(head.path):
            return self._look(head.method, found["id"], bool(found["cancel"]))
        if head.method == "POST" and head.path == "/v1/messages/count_tokens":
            return self._count_tokens(body)
        return 404, shape.error(404, "no such endpoint", self._run)

    def _look(self, method: str, id: str, cancel: bool) -> tuple[int, Any]:
        """The first look at an answer in the background finds it waiting, the next one done."""
        kept = self._background.get(id)
        if kept is None or method != ("POST" if cancel else "GET"):
            return 404, openai.error(404, "no such response", self._run)
        if cancel and kept[0]["status"] == "queued":
            kept[:] = [{**kept[0], "status": "cancelled"}]
        return 200, kept.pop(0) if len(kept) > 1 else kept[0]

    def _count_tokens(self, body: bytes) -> tuple[int, Any]:
        try:
            request = parse("openai", "", body)
        except BadRequest as problem:
            return 400, anthropic.error(400, str(problem), self._run)
        return 200, {"input_tokens": PromptCache().read(request).input_tokens}

    def _send(self, connection: Connection, status: int, document: Any) -> None:
        connection.send(http.plain(status, JSON, compact(document)))
