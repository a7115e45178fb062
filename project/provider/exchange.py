"""One model request being answered as its reply says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from project.provider import http, responses
from project.provider.answer import compose, spans
from project.provider.connection import Connection
from project.provider.event import Event, Kind, compact
from project.provider.log import Entry, Log
from project.provider.prompt import Prompt
from project.provider.request import ModelRequest
from project.provider.script import HANG_SECONDS_MAX, Reply
from project.provider.shapes import shape_of


class Exchange:
    """`run` makes ids unique, `background` keeps what later looks at an answer will see.

    The log learns an outcome before the client can see it.
    """

    def __init__(
        self,
        connection: Connection,
        request: ModelRequest,
        reply: Reply,
        prompt: Prompt,
        entry: Entry,
        log: Log,
        run: str,
        background: dict[str, list[dict[str, Any]]],
    ) -> None:
        self.connection, self.request, self.reply = connection, request, reply
        self.prompt, self.entry, self.log, self.id = prompt, entry, log, run
        self.background = background
        self.shape = shape_of(request.api)
        self._usage: dict[str, Any] | None = None
        self.streams = request.stream and reply.status < 400

    def begin(self) -> None:
        """Answer at once if nothing has to be waited for, else in a task."""
        reply = self.reply
        dropped = reply.drop_after_chunks is not None
        waits = reply.delay_seconds or reply.hang or reply.reset_connection or dropped
        if self.streams or waits:
            self.connection.start(self.run(), self._finish)
        else:
            self._send_plain()

    async def run(self) -> None:
        """Wait as the reply says, then answer."""
        reply = self.reply
        if reply.delay_seconds:
            await asyncio.sleep(reply.delay_seconds)
        if reply.hang:
            await asyncio.sleep(HANG_SECONDS_MAX)
            self._finish("hung")
            self.connection.close()
        elif reply.reset_connection:
            self._finish("reset")
            self.connection.reset()
        elif self.streams:
            await self._send_stream()
        else:
            self._send_plain()

    def _send_plain(self) -> None:
        reply = self.reply
        self.entry.status = reply.status
        encoder = http.Encoder(reply.content_encoding)
        body = encoder.part(self._plain_body()) + encoder.end()
        data = http.plain(reply.status, self._headers("application/json"), body)
        if reply.drop_after_chunks is not None:
            self._finish("dropped")
            self.connection.write(data[: len(data) - len(body) + len(body) // 2])
            self.connection.close()
            return
        self._finish("completed" if reply.status < 400 else "error")
        self.connection.send(data)

    def _plain_body(self) -> bytes:
        reply = self.reply
        if reply.body is not None:
            return reply.body.encode()
        if reply.status >= 400:
            message = f"simulated error {reply.status}"
            return compact(self.shape.error(reply.status, message, self.id))
        answer = compose(self.request, reply, self.prompt, self.id)
        document = self.shape.document(self.request, reply, answer, self.id)
        if self.request.api == "responses" and document["background"]:
            done = responses.finished(self.request, reply, answer, self.id)
            self.background[document["id"]] = [document, done]
        self.entry.usage = self.shape.usage(reply, answer.counts)
        return compact(document)

    async def _send_stream(self) -> None:
        """Ends early where the reply says so; the connection's end cancels it anywhere."""
        reply, entry, connection = self.reply, self.entry, self.connection
        entry.status = reply.status
        encoder = http.Encoder(reply.content_encoding)
        headers = {**self._headers(self.shape.STREAM_TYPE), "transfer-encoding": "chunked"}
        connection.write(http.head(reply.status, headers))
        for event, last in self._events():
            if event.kind is not Kind.OPENING and self._reached(reply.drop_after_chunks):
                self._finish("dropped")
                connection.close()
                return
            if event.kind is not Kind.OPENING and self._reached(reply.error_event_after_chunks):
                self._finish("failed")
                data = self.shape.error_event("simulated error in the stream", self.id)
                connection.write(http.chunk(encoder.part(data)))
                break
            if event.kind is Kind.CONTENT:
                if reply.chunk_delay_seconds:
                    await asyncio.sleep(reply.chunk_delay_seconds)
                await connection.drained()
                entry.chunks_sent += 1
            if last:
                entry.usage = self._usage
                self._finish("completed")
            connection.write(http.chunk(encoder.part(event.data)))
        connection.send(http.chunk(encoder.end()) + http.LAST_CHUNK)

    def _reached(self, chunks: int | None) -> bool:
        return chunks is not None and self.entry.chunks_sent >= chunks

    def _events(self) -> Iterator[tuple[Event, bool]]:
        """The events of the stream, each with whether it is the last."""
        events = list(self._composed())
        for position, event in enumerate(events, start=1):
            yield event, position == len(events)

    def _composed(self) -> Iterator[Event]:
        reply = self.reply
        if reply.body is not None:
            body = reply.body.encode()
            for start, end in spans(len(body), reply.chunks or 1):
                yield Event(Kind.CONTENT, body[start:end])
            yield Event(Kind.CLOSING, b"")
            return
        answer = compose(self.request, reply, self.prompt, self.id)
        self._usage = self._streamed_usage(self.shape.usage(reply, answer.counts))
        yield from self.shape.events(self.request, reply, answer, self.id)

    def _streamed_usage(self, counted: dict[str, Any] | None) -> dict[str, Any] | None:
        """The usage that the end of this stream will tell, if it comes to that."""
        if self.reply.usage_in_choice_chunk and self.request.api == "openai":
            return counted
        asked = self.request.include_usage or self.request.api != "openai"
        return counted if asked and not self.reply.no_usage_even_if_asked else None

    def _headers(self, content_type: str) -> dict[str, str]:
        encoding = self.reply.content_encoding
        return {
            "content-type": content_type,
            self.shape.REQUEST_ID: f"req_{self.id}",
            **({} if encoding is None else {"content-encoding": encoding}),
            **self.reply.headers,
        }

    def _finish(self, outcome: str) -> None:
        self.log.finish(self.entry, outcome)
