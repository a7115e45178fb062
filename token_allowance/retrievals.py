"""Answers made in the background: settled when the caller fetches them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

from token_allowance import blocking, conf, settlements
from token_allowance.answers import FRAMERS, LARGEST_BODY_BYTES, decoder
from token_allowance.bills import Account
from token_allowance.exceptions import AllowanceError
from token_allowance.providers.adapter import Adapter, Report
from token_allowance.providers.endpoints import Retrieval
from token_allowance.stores.base import Row, Store

logger = logging.getLogger("token_allowance")
OPEN = frozenset(("reserved", "expired"))  # a lease that ran out is charged late, once


def deferred(found: Retrieval) -> Row | None:
    """The ledger row of a call whose answer is still expected. Never raises for the store."""
    store: Store = conf.store()
    try:
        row = store.find(deferred_id=found.deferred_id)
    except AllowanceError:
        logger.warning("token_allowance: the store is down; an answer passes unread")
        return None
    return row if row is not None and row["state"] in OPEN else None


class Fetched:
    """Reads a fetched answer as it passes; settles its call if it tells what was used."""

    hides_usage = False
    refusal = None  # what was made in the background is there already

    def __init__(self, row: Row, adapter: Adapter, status: int, headers: Mapping[str, str]) -> None:
        self.row = row
        self.adapter = adapter
        self.over = status >= 400
        self._decode = decoder(headers.get("content-encoding", "").strip().lower())
        framer = FRAMERS.get(headers.get("content-type", "").partition(";")[0].strip().lower())
        self._framer = framer() if framer else None
        self._reader = adapter.reader()
        self._body = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        if self._decode is None or self.over:
            return chunk
        try:
            data = self._decode(chunk)
        except zlib.error:
            self.over = True
            return chunk
        if self._framer is not None:
            for frame in self._framer.feed(data):
                self._reader.event(frame.data, frame.event)
        elif len(self._body) + len(data) <= LARGEST_BODY_BYTES:
            self._body += data
        return chunk

    def rest(self) -> bytes:
        return b""

    def leave(self) -> None:
        """No switch looks at it."""

    def ended(self) -> None:
        if self.over:
            return
        blocking.check()
        self.over = True
        streams = self._framer is not None
        report = self._reader.report() if streams else self.adapter.response(bytes(self._body))
        try:
            self._settle(report)
        except AllowanceError:
            logger.exception("token_allowance: %s is not settled yet", self.row["id"])

    def closed(self, *flags: str) -> None:
        """Left before the end, which may have said all the same what was used."""
        self.ended()

    def failed(self) -> None:
        self.over = True

    def _settle(self, report: Report) -> None:
        store: Store = conf.store()
        if report.usage is not None:
            account = Account(
                usage=report.usage,
                flags=report.flags,
                service_tier=report.service_tier,
                raw=report.raw,
                others=report.others,
                reported_dollars=report.reported_dollars,
            )
            settlements.settle_row(store, self.row, account)
        elif self._framer is not None:
            return  # events may fail without the answer: the next look will tell
        elif report.failed:
            settlements.release_row(store, self.row)
        elif report.complete:  # cancelled: what it had cost until then is not said
            settlements.charge_row(store, self.row, "uncertain")
