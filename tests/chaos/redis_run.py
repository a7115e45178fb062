"""Chaos around RedisStore: callers and drainers are killed, Redis loses what it can lose."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db import Error

from tests import callers, redis_stores
from tests.chaos import audit, losses
from tests.chaos.callers import TENANTS, USERS
from tests.chaos.losses import Lost
from tests.chaos.run import AWAY_SECONDS, LEASE_SECONDS, Chaos, Due, end_in_order
from tests.redis_servers import LOSING, Redis
from tests.servers import Postgres, free_port
from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Outbox
from token_allowance.stores import outbox

BACKEND = "token_allowance.stores.redis.RedisStore"
PREFIX = "chaos"
DRAINERS = 2
DRAIN_EVERY_SECONDS = 0.5
DRAINER_KILLED_EACH_MOMENT = 0.05
UNSYNCED_SECONDS = (0.2, 1.0)  # what appendfsync everysec has not written when a machine fails
LAG_SECONDS = 0.5  # of the replica that is promoted
REDIS_EVERY_SECONDS = 5.0
ROLLING_SECONDS = 60
ROOM_EVERY_SECONDS = 1.0
ROOM = {"calls": 4, "tokens": 1000}  # more, each time: some budget is always about to be full


class RedisChaos(Chaos):
    """A primary and a replica, both with an append-only file that is synced every second."""

    processes = 3
    killed_each_moment = 0.1

    def __init__(self, folder: Path, postgres: Postgres, seed: int) -> None:
        super().__init__(folder, postgres, seed)
        self.primary, self.replica = Redis(*LOSING), Redis(*LOSING)
        self.replica.follow(self.primary)
        self.urls = [self.primary.url, self.replica.url]
        self.happened: Counts[str] = Counts()
        self.lost: list[Lost] = []
        self.drainers: list[int] = []
        self.sizes: deque[tuple[float, Path, int]] = deque(maxlen=200)
        self.room_at = 0.0
        self.most_above: dict[str, tuple[int, int]] = {}

    def stop(self) -> None:
        self.primary.stop()
        self.replica.stop()

    def settings(self) -> dict[str, Any]:
        return {"STORE": {"BACKEND": BACKEND, "OPTIONS": {"URL": self.urls, "PREFIX": PREFIX}}}

    def prepare(self) -> None:
        super().prepare()
        Limit.objects.filter(tenant="b").update(amount=ROOM["tokens"])
        Limit.objects.create(
            tenant="b", user="*", unit="calls", amount=1, window="rolling",
            rolling_seconds=ROLLING_SECONDS,
        )  # fmt: skip

    def give_room(self) -> None:
        """Raise what is nearly full, as far as database and Redis let us."""
        with suppress(Error, StoreUnavailable):
            for limit in Limit.objects.exclude(user="").exclude(window="hour"):
                limit.amount += ROOM[limit.unit]
                limit.save()

    def due(self, seconds: float) -> list[Due]:
        number = max(6, int(seconds / REDIS_EVERY_SECONDS))
        work = [self.kill if n % 2 else self.kill_and_cut for n in range(number)]
        work[number // 3] = self.flush
        work[number // 2] = self.take_away
        work[2 * number // 3] = self.promote
        return [(seconds * (n + 0.5) / number, work[n]) for n in range(number)]

    def keep_running(self, processes: callers.Callers, url: str) -> None:
        super().keep_running(processes, url)
        if time.monotonic() > self.room_at:
            self.room_at = time.monotonic() + ROOM_EVERY_SECONDS
            self.give_room()
        if self.drainers and self.chance.random() < DRAINER_KILLED_EACH_MOMENT:
            processes.kill(self.drainers.pop(self.chance.randrange(len(self.drainers))))
            self.happened["drainers killed"] += 1
        while len(self.drainers) < DRAINERS:
            pid = processes.start(kind="drain_for_ever", every_seconds=DRAIN_EVERY_SECONDS)
            self.drainers.append(pid)

    def sample(self) -> None:
        file = losses.append_only(self.primary)
        self.sizes.append((time.monotonic(), file, file.stat().st_size))
        try:
            full = audit.full(TENANTS, USERS)
            self.samples += 1
        except StoreUnavailable:
            self.blind += 1
            return
        for tenant, user, room in full:
            above = room.used + room.reserved - room.amount
            most = losses.most(self.lost, tenant, user, room.unit)
            name = f"{tenant} {user}: {room.unit}, {room.window}"
            self.most_above[name] = max(self.most_above.get(name, (0, 0)), (above, most))
            if above > most:
                self.problems.add(f"{name}: {above} above its amount; Redis had lost {most}")

    def kill(self) -> None:
        self.primary.halt()
        time.sleep(AWAY_SECONDS)
        self.primary.resume()
        self.happened["Redis killed"] += 1

    def kill_and_cut(self) -> None:
        self.primary.halt()
        at, file = time.time(), losses.append_only(self.primary)
        unsynced = time.monotonic() - self.chance.uniform(*UNSYNCED_SECONDS)
        sizes = [size for when, of, size in self.sizes if of == file and when <= unsynced]
        time.sleep(AWAY_SECONDS)  # who had read it has written it into the ledger
        if sizes:
            self.lose(at, "file cut", losses.cut(file, sizes[-1]))
        self.primary.resume()
        self.happened["Redis killed, and the end of its file cut off"] += 1

    def flush(self) -> None:
        stream = conf.store().asking.names.events
        at, mark = time.time(), self.mark()
        self.lose(at, "FLUSHALL", losses.flush(self.primary, stream, mark), mark)
        self.happened["FLUSHALL"] += 1

    def promote(self) -> None:
        """The replica hears nothing more, the primary dies, the replica takes its place."""
        old, new = self.primary, self.replica
        new.ask("REPLICAOF", "127.0.0.1", free_port())
        time.sleep(LAG_SECONDS)
        self.sample()
        old.halt()
        at = time.time()
        last = new.ask("XREVRANGE", conf.store().asking.names.events, "+", "-", "COUNT", 1)
        time.sleep(AWAY_SECONDS)
        events = losses.appended(losses.append_only(old).read_bytes())
        if last:
            events = losses.behind(events, last[0][0].decode())
        self.lose(at, "promotion", events)
        new.promote()
        old.options = (*old.options, "--replicaof", f"127.0.0.1 {new.port}")
        old.resume()
        self.primary, self.replica = new, old
        self.happened["replica promoted"] += 1

    def lose(self, at: float, how: str, events: list[Any], mark: str = "") -> None:
        events = losses.behind(events, mark or self.mark())
        self.lost.append(Lost(at, how, events))

    def mark(self) -> str:
        return outbox.watermark(self.alias, PREFIX)

    def end(self) -> None:
        end_in_order(self.drainers)
        super().end()

    def age(self) -> None:
        store = conf.store()
        store.drain()
        redis_stores.let_pass(store, LEASE_SECONDS + 1)

    def books(self, log: list[Any]) -> audit.Books:
        conf.store().drain()
        return audit.read(self.told(), log, self.alias, 0, self.lost)

    def figures(self, books: audit.Books) -> dict[str, Any]:
        rows = {str(row.id): row for rows in books.rows.values() for row in rows}
        ids = {event.reservation for lost in self.lost for event in lost.events}
        ends = Counts(rows[id].state if id in rows else "no row" for id in ids)
        self.problems.update(audit.leftovers())
        return {
            "happened": dict(self.happened),
            "epochs": Outbox.objects.get(prefix=PREFIX).epoch,
            "acknowledged by Redis, lost with it before the ledger had it": {
                "events": {
                    f"{number}: {lost.how}": losses.told([lost])
                    for number, lost in enumerate(self.lost, 1)
                },
                "calls": len(ids),
                "told, or told again, by processes that knew": ends["settled"] + ends["released"],
                "expired": ends["expired"],
                "only Redis knew: no row": ends["no row"],
            },
            "requests that nobody is charged for": books.uncharged(),
            "budgets exceeded: by how much at most, and what Redis had lost of them": {
                name: list(figures) for name, figures in sorted(self.most_above.items())
            },
        }
