"""One answer of a provider on its way to the caller: read as it passes, settled when it ends."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from token_allowance import blocking, calibration, conf, contexts, threads
from token_allowance.bills import Account
from token_allowance.exceptions import SwitchEngaged
from token_allowance.providers.adapter import Adapter, Reader, Report
from token_allowance.providers.ndjson import LineFramer
from token_allowance.providers.sse import Frame, Framer
from token_allowance.reservations import Reservation
from token_allowance.streams import Stream, watch
from token_allowance.usage import Usage

FRAMERS: dict[str, type[Framer | LineFramer]] = {
    "text/event-stream": Framer,
    "application/x-ndjson": LineFramer,
    "application/ndjson": LineFramer,
    "application/jsonl": LineFramer,
}
DEFERRED_SECONDS = 24 * 3600.0  # how long the hold of an answer in the background is kept
LARGEST_BODY_BYTES = 64 * 1024 * 1024
AT_ONCE_BYTES = 256 * 1024  # to read more would keep an event loop waiting


class Decoder(Protocol):
    def __call__(self, data: bytes, /) -> bytes: ...


def decoder(encoding: str) -> Decoder | None:
    """Undo a Content-Encoding for our own reading; None for one that we cannot read."""
    if encoding in ("", "identity"):
        return lambda data: data
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(47).decompress  # 32 + 15: gzip or zlib, by their headers
    return None


class Answering(Protocol):
    """What reads an answer as it passes on, and acts when it ends."""

    @property
    def over(self) -> bool:
        """Is nothing left to be done, whatever may still pass?"""
        ...

    @property
    def refusal(self) -> SwitchEngaged | None:
        """What its reader is to be told if it was cut."""
        ...

    def leave(self) -> None:
        """Its connection is about to be given back, so nobody may touch it any more."""
        ...

    def feed(self, chunk: bytes) -> bytes: ...

    def rest(self) -> bytes: ...

    def ended(self) -> None: ...

    def closed(self, *flags: str) -> None: ...

    def failed(self) -> None: ...


class Answer:
    """Settles a reservation by what passes through ``feed`` and how it ends.

    The outcome table of DESIGN.md section 6. State belongs to this object alone (case C37).
    """

    def __init__(
        self,
        reservation: Reservation,
        adapter: Adapter,
        status: int,
        headers: Mapping[str, str],
        *,
        hides_usage: bool,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        self.reservation = reservation
        self.adapter = adapter
        self.status = status
        self.request_id = headers.get("x-request-id") or headers.get("request-id") or ""
        self._decode = decoder(headers.get("content-encoding", "").strip().lower())
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        framer = FRAMERS.get(media_type)
        self._streams = framer is not None
        #: Does the caller see less than was sent? Then it sees it decoded.
        self.hides_usage = hides_usage and self._streams and self._decode is not None
        self._reader: Reader = adapter.reader()
        self._framer = (framer or Framer)()
        self._body = bytearray()
        self._extended_at = time.monotonic()
        self._stream: Stream | None = None
        if self._streams and status < 400:
            self._stream = Stream(reservation.plan, extensions or {})
            watch().enter(self._stream)

    @property
    def over(self) -> bool:
        """Is nothing left to be done, whatever may still pass?"""
        return self.reservation.finished or self.reservation.deferred

    @property
    def refusal(self) -> SwitchEngaged | None:
        return self._stream.refusal if self._stream else None

    def leave(self) -> None:
        if self._stream is not None:
            watch().leave(self._stream)

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk; returns what the caller shall see of it. Raises SwitchEngaged if cut."""
        shown = self._fed(chunk)  # what was sent is charged, also where it came too late
        if self.refusal is not None:
            raise self.refusal
        return shown

    def _fed(self, chunk: bytes) -> bytes:
        if self._decode is None:
            return chunk
        try:
            data = self._decode(chunk)
        except zlib.error:
            self._decode = None
            return chunk
        if not self._streams:
            if len(self._body) + len(data) <= LARGEST_BODY_BYTES:
                self._body += data
            return chunk
        self._keep_alive()
        shown = self._read(self._framer.feed(data))
        return shown if self.hides_usage else chunk

    def rest(self) -> bytes:
        """What was kept back when the body ended; to be sent before the end.

        Raises SwitchEngaged if that end was our doing.
        """
        if self.refusal is not None:
            raise self.refusal
        shown = self._read(self._framer.end())
        return shown if self.hides_usage else b""

    def ended(self) -> None:
        """The body was read to its end."""
        self.leave()
        if len(self._body) > AT_ONCE_BYTES:
            blocking.check()
        if self._decode is None:
            self._unreadable()
        elif not self._streams:
            self._settle_whole(self.adapter.response(bytes(self._body)))
        else:
            self._settle_stream(self._reader.report(), ended=True)

    def closed(self, *flags: str) -> None:
        """The caller left before the end: an SDK that retries does not read an error's body."""
        self.leave()
        if self.refusal is not None:
            flags = (*flags, "cut")
        if self._decode is None:
            self._unreadable(*flags)
        elif self._body:
            self._settle_whole(self.adapter.response(bytes(self._body)))
        elif self.status >= 400:
            self.reservation.release(*flags)
        elif self._streams:
            self._settle_stream(self._reader.report(), ended=False, flags=flags)
        else:
            self.reservation.settle_estimate("uncertain", *flags, request_id=self.request_id)

    def failed(self) -> None:
        """The connection broke, or was cut by a switch."""
        self.leave()
        report = self._reader.report()
        if self.refusal is not None:
            self.closed()
        elif self.status >= 400:
            self.reservation.release()
        elif self._streams and (report.delivered or report.input_reported or report.usage):
            self._settle_stream(report, ended=False)
        else:
            self.reservation.settle_estimate("uncertain", request_id=self.request_id)

    def _read(self, frames: list[Frame]) -> bytes:
        shown = bytearray()
        for frame in frames:
            hidden = False
            if frame.data:
                self._reader.event(frame.data, frame.event)
                hidden = self.hides_usage and self.adapter.is_usage_only(frame.data)
            if not hidden:
                shown += frame.raw
            elif frame.raw.startswith(b"\n"):  # the second half of the line end before it
                shown += b"\n"
        return bytes(shown)

    def _unreadable(self, *flags: str) -> None:
        if self.status >= 400:
            self.reservation.release(*flags)
        else:
            flags = ("estimated", "unparsed", *flags)
            self.reservation.settle_estimate(*flags, request_id=self.request_id)

    def _settle_whole(self, report: Report) -> None:
        if report.usage is None and (
            self.status >= 400 or (report.failed and not report.delivered)
        ):
            self.reservation.release()
        elif report.usage is None and report.deferred_id:
            self.reservation.defer(report.deferred_id, seconds=DEFERRED_SECONDS)
        elif report.usage is None:
            self.reservation.settle_estimate(
                "estimated", *report.flags, request_id=self._request_id(report)
            )
        else:
            self._settle(report.usage, report)

    def _settle_stream(self, report: Report, *, ended: bool, flags: tuple[str, ...] = ()) -> None:
        if report.complete and report.usage is not None:
            self._settle(report.usage, report)
        elif report.usage is None and report.deferred_id and self.status < 400:
            self.reservation.defer(report.deferred_id, seconds=DEFERRED_SECONDS)
        elif report.complete or (ended and not report.failed and self.status < 400):
            self.reservation.settle_estimate(
                "estimated", *report.flags, request_id=self._request_id(report)
            )
        elif report.delivered or report.input_reported or report.usage is not None:
            cut = ("interrupted", "error_partial") if report.failed else ("interrupted",)
            self._settle(self._so_far(report), report, *cut, *flags)
        else:
            self.reservation.release(*flags)

    def _so_far(self, report: Report) -> Usage:
        """Input as reported, else estimated; delivered text, or what was reported if more (C38)."""
        reported = report.usage or Usage()
        estimate = self.reservation.plan.estimate
        return replace(
            reported,
            input_tokens=reported.input_tokens if report.input_reported else estimate.input_tokens,
            output_tokens=max(reported.output_tokens, report.delivered_tokens),
        )

    def _settle(self, usage: Usage, report: Report, *flags: str) -> None:
        if "input_missing" in report.flags:
            estimated = self.reservation.plan.estimate.input_tokens
            usage = usage + Usage(input_tokens=estimated)
        attempt = self.reservation.plan.attempt
        contexts.remember(
            attempt.references, self.adapter.api, report.request_id, usage.total_tokens
        )
        countable = attempt.input_tokens if attempt.counted and not attempt.references else 0
        account = Account(
            usage=usage,
            flags=(*report.flags, *flags),
            service_tier=report.service_tier,
            raw=calibration.noted(report.raw, countable),
            others=report.others,
            reported_dollars=report.reported_dollars,
        )
        self.reservation.settle_account(account, request_id=self._request_id(report))

    def _request_id(self, report: Report) -> str:
        return report.request_id or self.request_id

    def _keep_alive(self) -> None:
        """A stream that goes on keeps its hold: its lease is lengthened at half time."""
        now = time.monotonic()
        if now - self._extended_at > conf.current().RESERVATION_SECONDS / 2:
            self._extended_at = now
            threads.later(self.reservation.extend)
