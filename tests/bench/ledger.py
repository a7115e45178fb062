"""Does a call take longer the more calls the ledger holds? Rows are copied inside the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from tests.bench.figures import milliseconds, progress, worst_milliseconds
from tests.bench.pairs import hold, pair
from tests.bench.stage import using

USED = 80, 70  # tokens in and out
STORES = ("PostgreSQL", "SQLite", "Redis")  # those with a ledger

FILL = {
    "postgresql": (
        "INSERT INTO {table} (id, created_at, {others}) "
        "SELECT md5('{label}' || n)::uuid, t.created_at - n * interval '1 millisecond', {others} "
        "FROM (SELECT * FROM {table} WHERE state = 'settled' LIMIT 1) t, "
        "generate_series(1, {number}) n"
    ),
    "sqlite": (
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {number}) "
        "INSERT INTO {table} (id, created_at, {others}) "
        "SELECT lower(hex(randomblob(16))), t.created_at, {others} "
        "FROM s, (SELECT * FROM {table} WHERE state = 'settled' LIMIT 1) t"
    ),
}


def rows(sizes: Sequence[int], number: int) -> Iterator[list[str]]:
    """One row per database and size: the medians of ``number`` calls by one caller."""
    from token_allowance import conf

    for store in STORES:
        with using(store):
            alias = conf.store().alias
            for size in sizes:
                took = _grow(alias, size)
                reserves, settles = _times(number)
                lost = _lost(alias)
                yield [
                    store,
                    f"{size:,}",
                    milliseconds(reserves),
                    worst_milliseconds(reserves),
                    milliseconds(settles),
                    f"{1000 * lost:,.0f}",
                    f"{_bytes(alias):,}" if size else "-",
                ]
                progress(f"{store} with {size:,} ledger rows is measured (filled in {took:.1f} s)")


def _grow(alias: str, size: int) -> float:
    """Empty the ledger and its counters, and fill it with settled calls of one user."""
    from django.db import connections

    from token_allowance.models import Counter, Reservation

    _settled_everywhere()
    for model in (Counter, Reservation):
        model.objects.using(alias).all().delete()
    _forget(alias)
    pair()
    _settled_everywhere()
    began = perf_counter()
    connection = connections[alias]
    table = Reservation._meta.db_table
    columns = [f.column for f in Reservation._meta.concrete_fields]
    others = ", ".join(f'"{name}"' for name in columns if name not in ("id", "created_at"))
    with connection.cursor() as cursor:
        if size:
            sql = FILL[connection.vendor]
            cursor.execute(sql.format(table=table, others=others, label=size, number=size))
        cursor.execute(
            f"VACUUM ANALYZE {table}" if connection.vendor == "postgresql" else "ANALYZE"
        )
    _lost(alias)
    return perf_counter() - began


def _times(number: int) -> tuple[list[float], list[float]]:
    from token_allowance.usage import Usage

    reserves, settles = [], []
    for _ in range(number):
        seconds, call = _timed(hold)
        reserves.append(seconds)
        settles.append(_timed(partial(call.settle, Usage(*USED)))[0])
    return reserves, settles


def _lost(alias: str) -> float:
    """Seconds of the first call after all its counters were lost: they are summed up anew."""
    _settled_everywhere()
    _forget(alias)
    seconds, call = _timed(hold)
    call.release()
    return seconds


def _settled_everywhere() -> None:
    """A store that writes the ledger later does it now."""
    from token_allowance import conf

    conf.store().drain()


def _forget(alias: str) -> None:
    """Lose all counters; as a new process, which has nothing to tell Redis again."""
    from token_allowance import conf
    from token_allowance.models import Counter

    Counter.objects.using(alias).all().delete()
    if wire := getattr(conf.store(), "wire", None):
        wire.execute("FLUSHDB")
        wire.close()
        conf.store.cache_clear()


def drained(number: int) -> Iterator[list[str]]:
    """How fast the ledger takes over what Redis has decided: of a call that begins and ends within
    one batch it writes one row, of one that lasts longer it writes the row twice."""
    from token_allowance import conf
    from token_allowance.usage import Usage

    with using("Redis"):
        store = conf.store()
        store.drain()
        for _ in range(number):
            pair()
        seconds, events = _timed(store.drain)
        yield _drained("short calls", number, events, seconds)
        calls = [hold() for _ in range(number)]
        begins, first = _timed(store.drain)
        for call in calls:
            call.settle(Usage(*USED))
        ends, last = _timed(store.drain)
        yield _drained("long calls", number, first + last, begins + ends)


def _drained(what: str, number: int, events: int, seconds: float) -> list[str]:
    if events != 2 * number:
        raise AssertionError(f"{events} events of {number} calls: somebody else drains")
    return ["Redis", what, f"{number:,}", f"{events:,}", f"{number / seconds:,.0f}"]


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    result = work()
    return perf_counter() - began, result


def _bytes(alias: str) -> int:
    """What a ledger row takes on disk, its indexes included."""
    from django.db import connections

    from token_allowance.models import Reservation

    connection = connections[alias]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_total_relation_size(%s)", [Reservation._meta.db_table])
        else:
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        size = int(cursor.fetchone()[0])
    return size // Reservation.objects.using(alias).count()
