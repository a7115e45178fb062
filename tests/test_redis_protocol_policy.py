"""The interleavings of a policy write with calls, by their numbers (protocols 4 and 5).

A call under the policy of before the commit must not be admitted after it. That each test can fail
is shown in test_redis_mutations.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from django.conf import LazySettings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests import redis_stores
from tests.redis_rules import between, process, processes, shared
from tests.stores import budget, charge, figures, request, reserve, spend, version
from token_allowance import allowance, announcements, conf, policy
from token_allowance.models import Limit, PolicyVersion
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore, recovery, versions

__all__ = ["shared"]

DAY = budget(amount=1000)


def ask(store: RedisStore, number: int) -> Outcome:
    """Reserve under this policy version, as a process does that knows no later one."""
    return store.reserve(replace(request(DAY, cost=1), version=number)).outcome


def commit(store: RedisStore) -> int:
    """A policy write that no signal announces; the version after it."""
    Limit.objects.create(unit="tokens", amount=10**9, tenant="nobody").delete()
    return version(store)


def known(store: RedisStore) -> int:
    """The version of now, which a running lease confirms."""
    number = version(store)
    assert ask(store, number) is Outcome.ADMITTED
    return number


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Signals go to the store of the settings: here only the tests tell the store anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("token_allowance.announcements._tell", lambda what: None)
        yield


def test_protocol_04_a_writer_killed_before_its_commit_stops_nobody(shared: RedisStore) -> None:
    with processes(shared, 2) as [writer, other]:
        before = known(other)
        writer.changing()
        assert ask(other, before) is Outcome.ADMITTED
        left = shared.wire.execute("PTTL", shared.asking.names.hold)
        assert 0 < left <= versions.HOLD_MILLISECONDS


def test_protocol_04_a_writer_killed_after_its_commit_is_obeyed(shared: RedisStore) -> None:
    with processes(shared, 2) as [writer, other]:
        before = known(other)
        writer.asking.begin(shared.asking.names.epoch)
        writer.changing()
        after = commit(shared)
        assert ask(other, before) is Outcome.STALE
        assert ask(other, after) is Outcome.ADMITTED


def test_protocol_04_no_lease_begins_while_a_writer_is_about_to_commit(shared: RedisStore) -> None:
    with processes(shared, 2) as [writer, other]:
        before = known(other)
        shared.wire.execute("DEL", shared.asking.names.lease)
        writer.changing()
        assert ask(other, before) is Outcome.ADMITTED
        commit(shared)
        shared.wire.execute("DEL", shared.asking.names.hold)  # its time has passed
        assert ask(other, before) is Outcome.STALE


def test_protocol_04_who_publishes_late_does_not_bring_an_old_version_back(
    shared: RedisStore,
) -> None:
    with processes(shared, 2) as [writer, late]:
        before = known(shared)
        shared.wire.execute("DEL", shared.asking.names.lease)

        def write() -> None:
            writer.changing()
            commit(shared)
            writer.changed()
            shared.wire.execute("DEL", shared.asking.names.hold)

        with between(versions, "_publish", write, before=True):
            ask(late, before)
        assert ask(shared, before) is Outcome.STALE


def test_protocol_04_a_confirmation_counts_from_when_it_began(shared: RedisStore) -> None:
    before = known(shared)
    shared.wire.execute("DEL", shared.asking.names.lease)
    seconds, _ = shared.wire.execute("TIME")
    versions._publish(shared, before, int(seconds) * 1000 - versions.LEASE_MILLISECONDS - 1000)
    commit(shared)
    assert ask(shared, before) is Outcome.STALE


def test_protocol_04_of_two_writers_the_second_is_obeyed_too(shared: RedisStore) -> None:
    with processes(shared, 3) as [first, second, other]:
        known(other)
        first.changing()
        second.changing()
        between_them = commit(shared)
        first.changed()
        assert ask(other, between_them) is Outcome.ADMITTED
        commit(shared)  # the second dies here
        assert ask(other, between_them) is Outcome.STALE


def test_protocol_04_a_flush_does_not_bring_an_old_version_back(shared: RedisStore) -> None:
    """Not even by one who has read the old version before it."""
    with processes(shared, 2) as [writer, late]:
        before = known(late)
        shared.wire.execute("DEL", shared.asking.names.lease)

        def flush() -> None:
            writer.changing()
            commit(shared)
            redis_stores.clear(shared)
            recovery.recover(writer)

        with between(versions, "_publish", flush, before=True):
            ask(late, before)
        assert ask(shared, before) is Outcome.STALE
        assert ask(late, before) is Outcome.STALE


def test_protocol_04_an_update_that_is_not_announced_is_obeyed_within_two_seconds(
    shared: RedisStore,
) -> None:
    before = known(shared)
    commit(shared)
    end = time.monotonic() + 2.3
    while ask(shared, before) is not Outcome.STALE:  # asking does not prolong it
        assert time.monotonic() < end
        time.sleep(0.05)


def test_protocol_04_engage_is_obeyed_by_the_next_call_of_another_process(
    shared: RedisStore, settings: LazySettings
) -> None:
    given = redis_stores.options() | {"PREFIX": shared.prefix}
    backend = "token_allowance.stores.redis.RedisStore"
    settings.TOKEN_ALLOWANCE = {"STORE": {"BACKEND": backend, "OPTIONS": given}}
    before = known(shared)

    def tell(what: str) -> None:
        getattr(conf.store(), what)()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(announcements, "_tell", tell)
        allowance.engage(everything=True, reason="protocol 4", by="a test")
    with process(shared) as other:
        assert ask(other, before) is Outcome.STALE


def test_protocol_04_a_database_that_was_turned_back_is_counted_anew(shared: RedisStore) -> None:
    charge(shared, DAY, cost=100)
    epoch, row = shared.asking.names.epoch, PolicyVersion.objects.order_by("kind").first()
    assert row is not None
    with processes(shared, 1) as [other]:
        known(other)
        number = row.number
        PolicyVersion.objects.filter(pk=row.pk).update(number=number + 10**9)
        try:
            shared.changed()
        finally:
            PolicyVersion.objects.filter(pk=row.pk).update(number=number)
        redis_stores.tamper(shared, DAY.key, {"used": 7})
        assert ask(other, version(shared)) is Outcome.ADMITTED
        assert other.asking.names.epoch == epoch + 1
        assert figures(other, DAY) == [(100, 2)]


def test_protocol_05_an_edit_storm_starves_nobody(shared: RedisStore) -> None:
    """Five edits a second: each holds the lease down, and each process takes time to read it."""
    done = threading.Event()
    edits: list[int] = []

    def edit() -> None:
        with process(shared) as writer, closing(connections["default"]):
            while not done.wait(0.2):
                writer.changing()
                edits.append(commit(shared))
                writer.changed()

    known(shared)
    editor = threading.Thread(target=edit)
    editor.start()
    try:
        tries = admitted = 0
        while len(edits) < 6 and tries < 500:
            tries += 1
            read = version(shared)
            time.sleep(0.05)
            admitted += ask(shared, read) is Outcome.ADMITTED
    finally:
        done.set()
        editor.join(10)
    assert not editor.is_alive()
    assert 2 * admitted > tries


def test_protocol_05_slow_reloads_between_edits_starve_nobody(shared: RedisStore) -> None:
    """Three edits a second at random, and 0.3 s to read the policy: of a call's tries to read it,
    two in five see no edit meanwhile. Edits that leave no such gap do keep calls out."""
    done = threading.Event()
    edits: list[int] = []
    loads: list[float] = []

    def edit() -> None:
        with process(shared) as writer, closing(connections["default"]):
            while not done.wait(random.expovariate(3)):
                writer.changing()
                edits.append(commit(shared))
                writer.changed()

    def slow(connection: BaseDatabaseWrapper) -> dict[str, tuple[str, str]]:
        loads.append(time.monotonic())
        time.sleep(0.3)
        return {}

    with redis_stores.chosen(shared), pytest.MonkeyPatch.context() as patch:
        policy.current()
        patch.setattr(policy, "_aliases", slow)
        editor = threading.Thread(target=edit)
        editor.start()
        try:
            while len(edits) < 8:
                spend(1, tenant="acme")  # or StoreUnavailable
        finally:
            done.set()
            editor.join(10)
    assert not editor.is_alive()
    assert len(loads) >= 3


def test_protocol_05_a_version_read_since_the_call_began_is_new_enough(shared: RedisStore) -> None:
    """Edits that follow each other faster than a call can look twice must not starve it."""
    reserve(shared, request(DAY, cost=1))
    row = PolicyVersion.objects.order_by("kind").first()
    assert row is not None
    for _ in range(2):
        row.number += 1
        row.save()
    read_before_the_last = replace(request(DAY, cost=1), version=version(shared) - 1)
    assert shared.reserve(read_before_the_last).outcome is Outcome.STALE
    row.number += 2
    row.save()
    read_before_the_last = replace(request(DAY, cost=1), version=version(shared) - 1)
    confirmed = replace(read_before_the_last, confirmed=True)
    assert shared.reserve(confirmed).outcome is Outcome.ADMITTED
    reserve(shared, request(DAY, cost=1))  # under the last one
    late = replace(request(DAY, cost=1), version=version(shared) - 1, confirmed=True)
    assert shared.reserve(late).outcome is Outcome.STALE
