"""What the keys are called. One hash tag for all of them: in a Cluster they share a slot, so a call
is one atomic step there too, and no id can open another tag (case C59): ids become digests.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID

from token_allowance import keys
from token_allowance.limits import Budget

MILLISECOND = dt.timedelta(milliseconds=1)
GRACE_MILLISECONDS = 2 * 86_400_000  # a counter outlives its window: calls may end after it
CAP_MILLISECONDS = 30 * 86_400_000  # of a job's caps, from its beginning
SHARDS = 64  # lists per window: one of a million fields would stop the server when it expires


class Epoch(int):
    """As a script's first argument: it is meant for this epoch, and for the server it is sent to.

    It goes with the keys of a question. Another thread may meet the next epoch while the question
    is on its way: a script that believed in that one would move counters that nobody reads.
    """


class Names:
    """The key names of one store (``prefix``) in one epoch. What is of no epoch has no number.

    ``opened_at``, in microseconds since 1970, is when the epoch began.
    """

    def __init__(self, prefix: str, epoch: int, opened_at: int = 0) -> None:
        tag = f"{{{prefix}}}"
        self.epoch = Epoch(epoch)
        self.opened_at = opened_at
        self.marker = f"{tag}:m"
        self.version = f"{tag}:version"
        self.lease = f"{tag}:lease"
        self.hold = f"{tag}:hold"
        self.gate = f"{tag}:gate"
        self.queue = f"{tag}:queue"
        self.events = f"{tag}:events"
        self.head = (
            self.marker, self.version, self.lease, self.hold, self.gate, self.queue
        )  # fmt: skip
        self.of_epoch = f"{tag}{epoch}:"
        self.leases = f"{self.of_epoch}leases"
        self.tickets = f"{self.of_epoch}q:"
        self._reservation = f"{self.of_epoch}r:"

    def reservation(self, id: UUID | str) -> str:
        return f"{self._reservation}{id}"

    def idempotent(self, tenant: str, key: str) -> str:
        return f"{self.of_epoch}i:{digest(f'{tenant}|{key}')}"

    def counter(self, key: str, since: int) -> tuple[str, str]:
        """Where ``used`` and ``reserved`` are; of a rolling budget or its slice, one hash twice."""
        return _counter(self.of_epoch, key, since)

    def opened(self, key: str) -> str:
        """The list of opened counters that this one stands in; its hash, if the window rolls."""
        return _opened(self.of_epoch, key)

    @staticmethod
    def whole(key: str) -> str:
        """The key of the counter as a whole: a slice's is that of its rolling budget."""
        return keys.whole(key) or key

    def queue_of(self, key: str) -> str:
        return f"{self.tickets}{digest(key)}"


def digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(maxsize=20_000)
def _counter(space: str, key: str, since: int) -> tuple[str, str]:
    whole = key if rolls(key) else keys.whole(key)
    if whole is not None:
        name = f"{space}s:{digest(f'{whole}@{since}')}"
        return name, name
    name = f"{space}c:{digest(f'{key}@{since}')}"
    return f"{name}:u", f"{name}:r"


@lru_cache(maxsize=20_000)
def _opened(space: str, key: str) -> str:
    rank, scope, _, edges, start = key.split("|")
    if rank == "0":
        return f"{space}o:{digest(scope)}"
    shard = int(digest(key)[:4], 16) % SHARDS
    return f"{space}o:{edges}|{start}:{shard}"


@lru_cache(maxsize=20_000)
def rolls(key: str) -> bool:
    """Is it the key of a rolling budget as a whole?"""
    return key.split("|")[3].startswith("rolling/") and key.endswith(f"|{keys.OPEN}")


@lru_cache(maxsize=20_000)
def slice_of(key: str) -> int | None:
    """The slice that a counter key names; None if it is no slice's key."""
    return int(key.rpartition("|")[2]) if keys.whole(key) is not None else None


def lasts_milliseconds(budget: Budget, now: dt.datetime) -> int:
    """How long a counter is kept from now on, by its window's end; 0 is for ever.

    It is set once, when the counter is made: a budget that is used goes no later (case C62).
    """
    if budget.is_cap:
        return CAP_MILLISECONDS
    end = budget.window.end
    return 0 if end is None else max(0, (end - now) // MILLISECOND) + GRACE_MILLISECONDS


def kept_milliseconds(budget: Budget) -> int:
    """How long a rolling budget that nobody spends from stays counted."""
    return 3 * budget.limit.rolling_seconds * 1000 + GRACE_MILLISECONDS
