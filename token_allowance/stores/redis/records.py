"""What RedisStore asks its ledger's database about itself, in SQL that both databases share."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Sequence
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import ledger
from token_allowance.stores.base import Row
from token_allowance.stores.connections import run, written_id

logger = logging.getLogger("token_allowance")
OUTBOX = "token_allowance_outbox"
OPEN = (
    "id", "tenant", "idempotency_key", "holds", "expires_at", "reserved_micros", "reserved_tokens",
)  # fmt: skip


def begin_epoch(connection: BaseDatabaseWrapper, prefix: str, now: dt.datetime) -> int:
    """The number of the next epoch, which nobody else gets."""
    opened = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {OUTBOX} (prefix, watermark, epoch, opened_at) "
            "VALUES (%s, '0-0', 1, %s) ON CONFLICT (prefix) DO UPDATE "
            f"SET epoch = {OUTBOX}.epoch + 1, opened_at = excluded.opened_at RETURNING epoch",
            [prefix, opened],
        )
        return int(cursor.fetchone()[0])


def open_rows(connection: BaseDatabaseWrapper) -> list[Row]:
    """The ledger's reservations that have not ended."""
    columns = ", ".join(OPEN)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {ledger.TABLE} WHERE state = 'reserved'")
        found = [dict(zip(OPEN, row, strict=True)) for row in cursor.fetchall()]
    for row in found:
        row["holds"] = json.loads(row["holds"]) if isinstance(row["holds"], str) else row["holds"]
    return found


def states(connection: BaseDatabaseWrapper, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The states of these reservations, as far as the ledger has them."""
    marks = ", ".join(["%s"] * len(ids))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, state FROM {ledger.TABLE} WHERE id IN ({marks})",
            [written_id(connection, id) for id in ids],
        )
        return {UUID(str(id)): state for id, state in cursor.fetchall()}


def used_before(alias: str, row: Row) -> bool:
    """Has the ledger this idempotency key? Redis remembers it only for a week."""
    wanted = {"tenant": row["tenant"], "idempotency_key": row["idempotency_key"]}
    try:
        found = run(alias, lambda connection: ledger.find(connection, wanted))
    except StoreUnavailable:
        logger.warning("token_allowance: an idempotency key is looked for in Redis only")
        return False
    return found is not None
