"""Estimates corrected by what was reported: opt-in, ESTIMATE["calibrate"].

While it is on, every settled call keeps what its input had been estimated at, before any factor, in
``raw_usage["token_allowance"]["estimated_input_tokens"]``. Rows with a flag, and calls that read
what the provider keeps, teach nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance import blocking, conf
from token_allowance.estimate import calibration
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.connections import run

logger = logging.getLogger("token_allowance")
OWN: Final = "token_allowance"  # our own place beside the provider's figures
ESTIMATED: Final = "estimated_input_tokens"
FRESH_SECONDS: Final = 300
DAYS: Final = 7
ROWS: Final = 5_000
LATEST: Final = (
    "SELECT provider, requested_model, input_tokens, flags, raw_usage "
    "FROM token_allowance_reservation "
    "WHERE created_at > %s AND state = 'settled' ORDER BY created_at DESC LIMIT %s"
)
ONE: Final = Decimal(1)
Factors = Mapping[tuple[str, str], Decimal]


class _Current:
    """The factors of this process; one call measures them anew, the others use the old ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._factors: Factors = {}
        self._measured_at: float | None = None

    def get(self) -> Factors:
        if self._due:
            blocking.check()
        if self._due and self._lock.acquire(blocking=False):
            try:
                if self._due:
                    self._measured_at = time.monotonic()
                    self._factors = measured(timezone.now())
            except (StoreUnavailable, DatabaseError):
                logger.warning("token_allowance: the ledger cannot be read to calibrate estimates")
            finally:
                self._lock.release()
        return self._factors

    def clear(self) -> None:
        self._measured_at, self._factors = None, {}

    @property
    def _due(self) -> bool:
        then = self._measured_at
        return then is None or time.monotonic() - then > FRESH_SECONDS


current = _Current()


def factor(provider: str, model: str) -> Decimal:
    """What an input estimate of this model is to be multiplied by; 1 unless calibrating."""
    return current.get().get((provider, model), ONE) if conf.current().calibrate else ONE


def noted(raw: Mapping[str, object], estimated_tokens: int) -> Mapping[str, object]:
    """The provider's figures, with our own beside them when calibrating."""
    if not (conf.current().calibrate and estimated_tokens):
        return raw
    return {**raw, OWN: {ESTIMATED: estimated_tokens}}


def measured(now: dt.datetime) -> Factors:
    """The factor of every model with rows enough in the last days."""
    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for provider, model, reported, flags, raw in run(alias, lambda c: _latest(c, now)):
        if not _document(flags) and (estimated := _estimated(_document(raw))):
            pairs[provider, model].append((estimated, reported))
    return {name: calibration.factor(found) for name, found in pairs.items()}


def _latest(connection: BaseDatabaseWrapper, now: dt.datetime) -> list[Any]:
    since = connection.ops.adapt_datetimefield_value(now - dt.timedelta(days=DAYS))
    with connection.cursor() as cursor:
        cursor.execute(LATEST, [since, ROWS])
        found: list[Any] = cursor.fetchall()
        return found


def _document(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _estimated(raw: Any) -> int:
    own = raw.get(OWN) if isinstance(raw, dict) else None
    tokens = own.get(ESTIMATED) if isinstance(own, dict) else None
    return tokens if isinstance(tokens, int) else 0
