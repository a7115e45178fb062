"""RedisStore: one budget for every process, in memory, with the ledger behind it."""

from __future__ import annotations

import datetime as dt
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS

from token_allowance.conf import ConfigurationError
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Budget
from token_allowance.stores import base, ledger
from token_allowance.stores.awaited import AwaitedStore
from token_allowance.stores.base import Decision, Drift, Outcome, Request, Room, Row, Settlement
from token_allowance.stores.connections import run
from token_allowance.stores.redis import (
    checking,
    drainage,
    ends,
    pending,
    questions,
    records,
    recovery,
    seeding,
    swift,
    versions,
)
from token_allowance.stores.redis import holds as held
from token_allowance.stores.redis.asking import PATIENCE_SECONDS, Asking
from token_allowance.stores.redis.holds import Holds
from token_allowance.stores.redis.names import Names
from token_allowance.stores.redis.wire import Wire

DEFAULT_PREFIX = "token_allowance"
EVENTS_MOST = 5_000_000  # that the ledger has not taken over; above it nothing is reserved
REMEMBERED = 100_000  # reservations of this process
RECENT_SECONDS = 60.0
OPTIONS = ("URL", "CACHE", "PREFIX", "ALIAS", "TIMEOUT_SECONDS", "MAX_CONNECTIONS", "EVENTS_MOST")


class RedisStore(AwaitedStore):
    """OPTIONS: ``URL`` (or several) or ``CACHE``, an alias of django-redis; ``PREFIX`` of the keys;
    ``ALIAS`` of the ledger's database; ``TIMEOUT_SECONDS`` (1), ``MAX_CONNECTIONS`` (16),
    ``EVENTS_MOST`` (5,000,000) that may wait for the ledger.
    """

    checks_version = True
    can_wait = True

    def __init__(self, **options: Any) -> None:
        if unknown := [name for name in options if name not in OPTIONS]:
            raise ConfigurationError(
                f"RedisStore has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}."
            )
        self.alias = options.get("ALIAS", DEFAULT_DB_ALIAS)
        self.prefix = options.get("PREFIX", DEFAULT_PREFIX)
        self.wire = Wire(options)
        self.asking = Asking(self.wire, self.prefix, self.meet)
        self.swift = swift.Swift(self.wire)
        self.events_most = int(options.get("EVENTS_MOST", EVENTS_MOST))
        self._queues: dict[UUID | None, list[str]] = {}  # where tickets of this process stand
        self._swept = 1  # the first epoch has nothing to sweep up
        self._held: OrderedDict[UUID, Holds] = OrderedDict()
        self._recent: deque[tuple[float, Settlement]] = deque(maxlen=10_000)
        self._owed: deque[Settlement] = deque(maxlen=10_000)

    def reserve(self, request: Request) -> Decision:
        holds = held.of_budgets(request.budgets, request.amounts)
        try:
            decision = self._reserve(request, holds)
        except BaseException as error:  # an interrupt, too
            if getattr(error, "sent", getattr(error.__cause__, "sent", False)):
                self.owe(request)
            raise
        self.pay()
        return decision

    def _reserve(self, request: Request, holds: Holds) -> Decision:
        if request.row["idempotency_key"] and records.used_before(self.alias, request.row):
            return Decision(Outcome.REPEAT)
        words = ("q" if request.ticket else "") + ("c" if request.confirmed else "")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            answer = self.asking.ask(
                questions.reserve, request, holds, words, self.fresh, self.events_most
            )
            word = answer[0]
            if word == "admitted":
                self.remember(request.id, holds)
                self._queues.pop(request.ticket, None)
                return Decision(Outcome.ADMITTED)
            if word == "degrade":
                return Decision(Outcome.DEGRADE, questions.rooms(request, answer[2:]))
            if word == "refused":
                if request.ticket:
                    self._queues[request.ticket] = [budget.key for budget in request.budgets]
                rooms = seeding.dated(self, questions.rooms(request, answer[2:]))
                return Decision(Outcome.REFUSED, rooms, rank=int(answer[1]))
            if word == "repeat":
                return Decision(Outcome.REPEAT)
            if word == "older" and request.confirmed and versions.is_news(request, answer):
                versions.publish(self, request.version)
            elif word in ("confirm", "older"):
                known = versions.confirm(self)
                if known == versions.UNKNOWN:
                    request = versions.unconfirmed(request, answer)
                elif known != request.version:
                    return Decision(Outcome.STALE)
                words += "c"
            elif word == "open":
                if "o" in words:
                    missing = [request.budgets[i - 1] for i in answer[1:]]
                    seeding.seed(self, missing, request.now)
                else:
                    words += "o"
            elif word == "queued":
                words += "q"
            else:
                raise StoreUnavailable(
                    "The ledger is too far behind: too many calls wait to be written to it. "
                    "Run `manage.py allowance drain --loop`."
                )
        raise StoreUnavailable("The counters of this call could not be seeded from the ledger.")

    def leave(self, ticket: UUID) -> None:
        names = self.asking.names
        for key in self._queues.pop(ticket, ()):
            self.wire.execute("HDEL", names.queue_of(key), str(ticket))

    def owe(self, request: Request) -> None:
        self._owed.append(ends.unheard(request))  # released with the next call (protocol 9)

    def settle(self, settlement: Settlement) -> Outcome:
        if self.wire.breaker.doubtful and pending.keep(self.alias, settlement):
            return Outcome.KEPT  # the answer is there: nobody waits for another timeout
        self.pay()
        try:
            outcome = ends.settle(self, settlement)
        except StoreUnavailable:
            if pending.keep(self.alias, settlement):
                return Outcome.KEPT
            raise
        self.told(settlement)
        return outcome

    async def areserve(self, request: Request) -> Decision | None:
        """Reserve on the event loop; None: ask ``reserve``, in a thread, which may repeat it."""
        return None if self._owed else await swift.reserve(self, request)

    async def asettle(self, settlement: Settlement) -> Outcome | None:
        """Settle on the event loop; None: ask ``settle``, in a thread, which may repeat it."""
        return None if self._owed else await swift.settle(self, settlement)

    def told(self, settlement: Settlement) -> None:
        """Remember for a while what Redis was told, and could lose."""
        self._recent.append((time.monotonic(), settlement))

    def extend(self, request: Request, *, deferred_id: str | None = None) -> Decision:
        holds = self.holds_of(request.id)
        while holds is not None:
            answer = self.asking.ask(questions.extend, request, holds, deferred_id)
            if answer[0] == "extended":
                self.remember(request.id, holds.more(request.amounts))
                return Decision(Outcome.EXTENDED)
            if answer[0] == "refused":
                return Decision(Outcome.REFUSED, self._rooms_held(request, holds, answer[1:]))
            holds = held.read(answer[1][2:]) if answer[0] == "holds" else None
        return Decision(Outcome.GONE)

    def expire(self, now: dt.datetime, *, charge: bool, most: int = 500) -> int:
        _, *ids = self.asking.ask(questions.due, most)
        return sum(ends.expire(self, id.decode(), now, charge=charge) for id in ids)

    def usage(self, budgets: Sequence[Budget]) -> list[Room]:
        self.asking.ask(questions.look)
        return seeding.figures(self, budgets)

    def find(
        self, *, deferred_id: str = "", tenant: str = "", idempotency_key: str = ""
    ) -> Row | None:
        drainage.drain(self)
        wanted = {"deferred_id": deferred_id}
        if not deferred_id:
            wanted = {"tenant": tenant, "idempotency_key": idempotency_key}
        return run(self.alias, lambda connection: ledger.find(connection, wanted))

    def rebuild(self, now: dt.datetime) -> list[Drift]:
        self.asking.ask(questions.look)
        return seeding.rebuild(self, now)

    def adjust(self, budget: Budget, amount: int | None, row: Row) -> base.Adjusted:
        self.asking.ask(questions.look)
        return seeding.adjust(self, budget, amount, row)

    def check(self) -> list[str]:
        return checking.problems(self.wire)

    def drain(self) -> int:
        """One round of what has to be done all the time; how many events the ledger took over.

        Finds out whether the server was restarted, too, and settles what it could not be told.
        """
        self.asking.ask(questions.look)
        pending.apply(self)
        taken = drainage.drain(self)
        drainage.trim(self)
        if self._swept != self.asking.names.epoch:
            drainage.sweep(self)
            self._swept = self.asking.names.epoch
        return taken

    def behind_seconds(self) -> float:
        return drainage.behind_seconds(self)

    def changing(self) -> None:
        versions.hold(self)

    def changed(self) -> None:
        versions.publish_written(self)

    def remember(self, id: UUID, holds: Holds) -> None:
        self._held[id] = holds
        if len(self._held) > REMEMBERED:
            self._held.popitem(last=False)

    def known(self, id: UUID) -> Holds | None:
        """What a reservation of this process holds, as far as this process knows."""
        return self._held.get(id)

    def forget(self, id: UUID) -> Holds | None:
        return self._held.pop(id, None)

    def holds_of(self, id: UUID) -> Holds | None:
        """What an open reservation holds; None if it is final or unknown."""
        if id in self._held:
            return self._held[id]
        text = self.wire.execute("GET", self.asking.names.reservation(id))
        return held.read(text[2:]) if text and text[:1] == b"R" else None

    def meet(self, marker: str) -> None:
        """A server has this marker: believe in its epoch, or begin it anew from the ledger."""
        epoch, _, _ = marker.partition(":")
        before = self.asking.names.epoch
        if not marker or int(epoch) == before:
            recovery.recover(self)
        else:
            recovery.adopt(self, int(epoch))
        if before and self.asking.names.epoch != before:
            self._replay()

    def turned_back(self) -> None:
        """The database is older than what was published from it: count everything anew."""
        recovery.recover(self, whatever=True)

    @staticmethod
    def fresh(names: Names, budget: Budget) -> bool:
        """Is a missing counter zero, unless one was opened? Only of windows of this epoch."""
        if budget.slice is not None:
            return False
        if budget.is_cap:
            return budget.untouched and budget.since >= names.opened_at
        since = max(budget.since, names.opened_at)
        start = budget.window.start
        return start is not None and base.began_after(start, since)

    def _rooms_held(
        self, request: Request, holds: Holds, refused: Sequence[Any]
    ) -> tuple[Room, ...]:
        key = holds.entries[refused[0] - 1][0]
        budget = next(b for b in request.budgets if b.held_in == key)
        return seeding.dated(self, [Room(budget, int(refused[1]), int(refused[2]))])

    def pay(self) -> None:
        """Release what was reserved without a word, as far as the server lets us."""
        while self._owed:
            try:
                settlement = self._owed.popleft()
            except IndexError:
                return
            try:
                ends.settle(self, settlement)
            except StoreUnavailable:
                self._owed.append(settlement)
                return

    def _replay(self) -> None:
        recent = [s for at, s in list(self._recent) if time.monotonic() - at < RECENT_SECONDS]
        if recent:
            recovery.replay(self, recent)
