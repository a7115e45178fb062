"""Rules of the protocols, each of which a test can take away to see that somebody misses it.

And the fixture ``shared``: a RedisStore whose keys a second one, another process, can name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha1
from typing import Any

import pytest

from tests import redis_stores
from tests.stores import own_pool
from token_allowance.stores.redis import RedisStore
from token_allowance.stores.redis.scripts import script

Rule = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def shared(databases: None, django_db_blocker: Any) -> Iterator[RedisStore]:
    """An empty store on this run's server."""
    with django_db_blocker.unblock(), own_pool("default"), redis_stores.fresh() as made:
        yield made


@contextmanager
def process(of: RedisStore, **given: Any) -> Iterator[RedisStore]:
    """Another process of the same budgets: it knows nothing that this one remembers."""
    options = redis_stores.options() | {"PREFIX": of.prefix, **given}
    made = RedisStore(**options)
    try:
        yield made
    finally:
        made.wire.close()


@contextmanager
def processes(of: RedisStore, number: int) -> Iterator[list[RedisStore]]:
    with ExitStack() as stack:
        yield [stack.enter_context(process(of)) for _ in range(number)]


def line(name: str, old: str, new: str = "") -> Rule:
    """The rule that this text of a script is."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        found = script(name)
        source = found.source.decode()
        assert source.count(old) == 1, f"{name}.lua has {source.count(old)} of {old!r}"
        changed = source.replace(old, new).encode()
        patch.setattr(found, "source", changed)
        patch.setattr(found, "sha", sha1(changed, usedforsecurity=False).hexdigest().encode())

    return remove


def part(owner: Any, name: str, instead: Any) -> Rule:
    """The rule that this function or number is."""
    return lambda patch: patch.setattr(owner, name, instead)


def together(*rules: Rule) -> Rule:
    """One rule that is written in several places."""

    def remove(patch: pytest.MonkeyPatch) -> None:
        for rule in rules:
            rule(patch)

    return remove


class Meanwhile:
    """Work in a thread that may have to wait for something; its answer or error in the end."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._work()
        except BaseException as error:
            self.error = error

    def waits(self, seconds: float = 0.1) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive(), "it waits for ever"
        if self.error is not None:
            raise self.error
        return self.answer


@contextmanager
def between(
    owner: Any, name: str, work: Callable[[], Any], *, before: bool = False
) -> Iterator[None]:
    """Do this once, right after (or before) that function ran: the interleaving, by force."""
    original = getattr(owner, name)
    left = [work]

    def run(*arguments: Any, **named: Any) -> Any:
        if before and left:
            left.pop()()
        found = original(*arguments, **named)
        if not before and left:
            left.pop()()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, run)
        yield
    assert not left, f"{name} was not called"
