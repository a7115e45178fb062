"""Each test of an interleaving fails when its rule is taken away: else it would prove nothing.

A rule is a text of a script, or a function, or a number. Tests of the contract that show a number
by themselves stand here too, for RedisStore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from django.conf import LazySettings

from tests import (
    test_redis_protocol_ledger as books,
)
from tests import (
    test_redis_protocol_policy as policy,
)
from tests import (
    test_redis_protocol_servers as places,
)
from tests.redis_rules import Rule, line, part, shared, together
from tests.redis_servers import Cluster, cluster
from tests.stores import own_pool
from tests.test_redis_protocol_ledger import small
from token_allowance import decisions
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import events as log
from token_allowance.stores import merge, outbox, outbox_postgresql, version
from token_allowance.stores.connections import run
from token_allowance.stores.redis import (
    RedisStore,
    drainage,
    gate,
    recovery,
    store,
    versions,
    wire,
)
from token_allowance.stores.redis.names import Names
from token_allowance.stores.rollups import Sums

__all__ = ["cluster", "shared", "small"]

FAILS = (AssertionError, pytest.fail.Exception, StoreUnavailable, TimeoutError, *wire.SOON)
Scenario = Callable[[RedisStore], None]
counter = Names.counter
take, lock, after, move = outbox.Batch.take, outbox_postgresql.lock, merge.after, Sums.move
events = drainage.events
FULL = "if redis.call('XLEN', KEYS[9 + 2 * n]) > tonumber(ARGV[13]) then return {'full'} end"
OLDER = "if got[2] and less(ARGV[2], got[2]) then return {'older', got[2]} end"
BEGAN = "tonumber(ARGV[3]) + tonumber(ARGV[4]) - (now[1] * 1000 + math.floor(now[2] / 1000))"


def unlocked(cursor: Any, prefix: str) -> str:
    """The watermark, which another drainer may be moving."""
    cursor.execute(
        "INSERT INTO token_allowance_outbox (prefix, watermark, epoch) VALUES (%s, '0-0', 0) "
        "ON CONFLICT (prefix) DO NOTHING",
        [prefix],
    )
    cursor.execute("SELECT watermark FROM token_allowance_outbox WHERE prefix = %s", [prefix])
    return str(cursor.fetchone()[0])


def holds_for_ever(of: RedisStore) -> None:
    of.wire.execute("SET", of.asking.names.hold, 1)


def marks_first(batch: outbox.Batch, given: Sequence[outbox.Event]) -> None:
    """The watermark, in a commit before that of the rows."""
    batch.cursor.execute(f"UPDATE {outbox.OUTBOX} SET watermark = %s", [given[-1].id])
    batch.cursor.execute("COMMIT")
    batch.cursor.execute("BEGIN")
    take(batch, given)


def commits_rows_and_counts_again(batch: outbox.Batch, given: Sequence[outbox.Event]) -> None:
    """Rows in a commit before that of the watermark; and what is read again is counted again."""
    take(batch, given)
    batch.cursor.execute("UPDATE token_allowance_hourlyspend SET calls = calls + 3")
    batch.cursor.execute("COMMIT")
    batch.cursor.execute("BEGIN")


def forgets_the_watermark(cursor: Any, prefix: str) -> str:
    lock(cursor, prefix)
    return outbox.BEGINNING


def made_anew(row: Any, event: outbox.Event, said: Any) -> Any:
    found = after(row, event, said)
    return found if found is None else found.copy()


def counts_each_time(sums: Sums, old: Any, new: Any) -> None:
    move(sums, None, new)


def trims_everything(of: RedisStore) -> None:
    of.wire.execute("XTRIM", of.asking.names.events, "MAXLEN", 0)


def reads_and_drops(of: RedisStore, since: str, most: int) -> list[outbox.Event]:
    found = events(of, since, most)
    trims_everything(of)
    return found


def unguarded(batch: outbox.Batch, given: Any) -> Any:
    return ((event, log.content(event)) for event in given)


def stops_at_a_hostile_event(of: RedisStore) -> None:
    try:
        books.test_protocol_08_a_hostile_event_does_not_stop_the_drain(of, b"[")
    except ValueError as error:
        raise AssertionError("the drain stopped") from error


def publishes_and_opens(of: RedisStore) -> None:
    versions._publish(of, run(of.alias, version.read), "")
    of.wire.execute("DEL", of.asking.names.hold)


def forgets_to_settle(of: RedisStore, settlement: Any) -> None:
    """A process that does not remember what it told the server."""


RULES: list[tuple[str, Scenario, Rule]] = [
    (
        "04 a hold ends by itself",
        policy.test_protocol_04_a_writer_killed_before_its_commit_stops_nobody,
        part(versions, "hold", holds_for_ever),
    ),
    (
        "04 under a hold calls are confirmed",
        policy.test_protocol_04_a_writer_killed_before_its_commit_stops_nobody,
        together(
            line("reserve", "if not confirmed and (not got[3] or got[4])", "if got[4]"),
            part(store, "PATIENCE_SECONDS", 0.5),
        ),
    ),
    (
        "04 a hold asks the database",
        policy.test_protocol_04_a_writer_killed_after_its_commit_is_obeyed,
        line("reserve", "not got[3] or got[4]", "not got[3]"),
    ),
    (
        "04 no lease under a hold",
        policy.test_protocol_04_no_lease_begins_while_a_writer_is_about_to_commit,
        line("publish", "if ARGV[3] == '' or got[4] then", "if ARGV[3] == '' then"),
    ),
    (
        "04 a version never goes back",
        policy.test_protocol_04_who_publishes_late_does_not_bring_an_old_version_back,
        line("publish", OLDER),
    ),
    (
        "04 a lease counts from before the read",
        policy.test_protocol_04_a_confirmation_counts_from_when_it_began,
        line("publish", BEGAN, "tonumber(ARGV[4])"),
    ),
    (
        "04 a writer leaves the hold",
        policy.test_protocol_04_of_two_writers_the_second_is_obeyed_too,
        part(versions, "publish_written", publishes_and_opens),
    ),
    (
        "04 a lease lasts two seconds",
        policy.test_protocol_04_an_update_that_is_not_announced_is_obeyed_within_two_seconds,
        part(versions, "LEASE_MILLISECONDS", 10_000),
    ),
    (
        "04 a flush keeps the newest version",
        policy.test_protocol_04_a_flush_does_not_bring_an_old_version_back,
        line("publish", OLDER),
    ),
    (
        "04 turned back",
        policy.test_protocol_04_a_database_that_was_turned_back_is_counted_anew,
        together(
            part(RedisStore, "turned_back", lambda of: None), part(store, "PATIENCE_SECONDS", 0.5)
        ),
    ),
    (
        "05 what was confirmed is enough",
        policy.test_protocol_05_an_edit_storm_starves_nobody,
        together(
            line("reserve", "if not confirmed and (", "if ("), part(store, "PATIENCE_SECONDS", 0.5)
        ),
    ),
    (
        "05 what is newer than the published is news",
        policy.test_protocol_05_a_version_read_since_the_call_began_is_new_enough,
        part(versions, "is_news", lambda request, answer: False),
    ),
    (
        "05 the policy is read again and again",
        policy.test_protocol_05_slow_reloads_between_edits_starve_nobody,
        part(decisions, "TRIES", 1),
    ),
    (
        "06 a clock that was set back",
        places.test_protocol_06_a_server_whose_clock_was_set_back_is_read_on,
        part(recovery, "_continued", lambda *given: []),
    ),
    (
        "06 one recovers",
        places.test_protocol_06_one_process_recovers_and_the_others_wait,
        part(gate.Gate, "take", lambda own: True),
    ),
    (
        "07 nothing is dropped before the commit",
        partial(
            books.test_protocol_07_a_drainer_killed_anywhere_loses_and_doubles_nothing,
            module=drainage,
            name="events",
            before=False,
        ),
        part(drainage, "events", reads_and_drops),
    ),
    (
        "07 rows and watermark in one commit",
        partial(
            books.test_protocol_07_a_drainer_killed_anywhere_loses_and_doubles_nothing,
            module=outbox,
            name="_set_aside",
            before=True,
        ),
        part(outbox.Batch, "take", marks_first),
    ),
    (
        "07 a row is written once",
        partial(
            books.test_protocol_07_a_drainer_killed_anywhere_loses_and_doubles_nothing,
            module=outbox,
            name="_set_aside",
            before=False,
        ),
        part(outbox.Batch, "take", commits_rows_and_counts_again),
    ),
    (
        "07 what was taken over changes nothing",
        partial(
            books.test_protocol_07_a_drainer_killed_anywhere_loses_and_doubles_nothing,
            module=outbox,
            name="take_over",
            before=False,
        ),
        together(
            part(outbox_postgresql, "lock", forgets_the_watermark),
            part(merge, "after", made_anew),
            part(Sums, "move", counts_each_time),
        ),
    ),
    (
        "07 one drainer at a time",
        books.test_protocol_07_two_drainers_take_each_event_once,
        part(outbox_postgresql, "lock", unlocked),
    ),
    (
        "08 hostile events are set aside",
        stops_at_a_hostile_event,
        together(part(outbox, "HOSTILE", ()), part(outbox.Batch, "_said", unguarded)),
    ),
    (
        "08 the stream has a cap",
        books.test_protocol_08_a_full_stream_refuses_calls_and_settles_those_under_way,
        line("reserve", FULL),
    ),
]


@pytest.fixture(autouse=True)
def silence() -> Any:
    """As in the tests of the policy: the store of the settings is told nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("token_allowance.announcements._tell", lambda what: None)
        yield


@pytest.mark.parametrize(("scenario", "rule"), [pytest.param(s, r, id=n) for n, s, r in RULES])
def test_an_interleaving_misses_its_rule(
    shared: RedisStore, scenario: Scenario, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(monkeypatch)
    with pytest.raises(FAILS):
        scenario(shared)


@pytest.fixture
def unblocked(databases: None, django_db_blocker: Any) -> Any:
    with django_db_blocker.unblock(), own_pool("default"):
        yield


def test_protocol_04_misses_the_word_to_the_store(
    shared: RedisStore, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisStore, "changing", lambda of: None)
    monkeypatch.setattr(RedisStore, "changed", lambda of: None)
    with pytest.raises(FAILS):
        policy.test_protocol_04_engage_is_obeyed_by_the_next_call_of_another_process(
            shared, settings
        )


def test_protocol_08_misses_the_write_that_a_full_memory_allows(
    small: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    line("settle", "redis.call('ZREM', KEYS[4 + 2 * n], id)\n")(monkeypatch)
    with pytest.raises(FAILS):
        books.test_protocol_08_a_full_memory_refuses_calls_and_settles_those_under_way(small)


def test_protocol_06_misses_the_memory_of_the_process(
    unblocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisStore, "told", forgets_to_settle)
    with pytest.raises(FAILS):
        places.promote(drained=False)


def test_protocol_06_misses_the_run_id(unblocked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    same = wire.fields

    def fields(info: bytes) -> dict[str, str]:
        return same(info) | {"run_id": "the same"}

    monkeypatch.setattr(wire, "fields", fields)
    monkeypatch.setattr("token_allowance.stores.redis.checking.fields", fields)
    with pytest.raises(FAILS):
        places.promote(drained=True)


def test_protocol_17_misses_the_patience(
    cluster: Cluster, unblocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SOON", ())
    with pytest.raises(FAILS):
        places.move(cluster)


def test_protocol_17_misses_who_is_named(
    cluster: Cluster, unblocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "REDIRECTIONS", 0)
    with pytest.raises(FAILS):
        places.moved(cluster)
