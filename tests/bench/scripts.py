"""What the scripts of RedisStore cost one core of the server, beside an empty script and PING.

By a thin client: commands that were written before, over plain sockets, one at a time on each, so
that the server is what is measured; its own processor time says how much of it that is.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha1
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.bench.figures import progress
from tests.bench.stage import OPENAI_MODEL, STORES, using

if TYPE_CHECKING:
    from token_allowance.stores.base import Request
    from token_allowance.stores.redis import RedisStore
    from token_allowance.stores.redis.asking import Question

CONNECTIONS = 50
TASKS = 100
ROUNDS = 7
USERS, TENANTS, FEATURES = 200, 20, 7
RELIED_MILLISECONDS = 600_000
EMPTY = b"return 1"
EXPECTED = {
    "reserve": b"admitted",
    "extend": b"extended",
    "settle": b"settled",
    "release": b"settled",
    "empty script": b":1",
    "PING": b"+PONG",
}


@dataclass(frozen=True)
class Measured:
    per_second: float
    server_seconds: float  # of its processor, per command


class Thin:
    """Plain sockets to the server, each with one command under way."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        place = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self.sockets = [
            stack.enter_context(socket.create_connection(place, 5)) for _ in range(CONNECTIONS)
        ]

    def run(self, commands: Sequence[bytes]) -> list[bytes]:
        answers, waits = [], len(self.sockets)
        for i in range(len(commands) + waits):
            link = self.sockets[i % waits]
            if waits <= i:
                answers.append(link.recv(65_536))
            if i < len(commands):
                link.sendall(commands[i])
        return answers


def rows(number: int) -> Iterator[list[str]]:
    """One row per script: medians of several rounds of ``number`` commands, in random order."""
    from token_allowance import conf

    with using("Redis"), ExitStack() as stack:
        store = conf.store()
        thin = Thin(STORES["Redis"][1]["URL"], stack)
        kinds = _open(store)
        found: dict[str, list[Measured]] = {}
        for _ in range(ROUNDS):
            work = _commands(store, kinds, number)
            names = ["PING", "empty script", "reserve"]
            random.shuffle(names)
            for name in (*names, "extend", "settle", "release"):
                found.setdefault(name, []).append(_measured(store, thin, name, work[name]))
            store.wire.execute("DEL", store.asking.names.events)
        empty = found["empty script"]
        for name in EXPECTED:
            taken = found[name]
            yield [
                name,
                f"{median(one.per_second for one in taken):,.0f}",
                f"{1e6 * median(one.server_seconds for one in taken):.1f}",
                f"{_ratio(taken, empty, lambda one: one.per_second):.2f}",
                f"{_ratio(empty, taken, lambda one: one.server_seconds):.2f}",
            ]
        progress("scripts are measured")


def together(number: int) -> Iterator[list[str]]:
    """Pairs of the same two scripts by many tasks: over the loop's connection, and a pool's."""
    from token_allowance import conf

    with using("Redis"):
        store = conf.store()
        kinds = _open(store)
        ours = asyncio.run(_pairs(store, kinds, number, pooled=False))
        pool = asyncio.run(_pairs(store, kinds, number, pooled=True))
        store.drain()
        yield [f"{TASKS} tasks", f"{ours:,.0f}", f"{pool:,.0f}", f"{ours / pool:.1f}"]


def _ratio(
    above: Sequence[Measured], below: Sequence[Measured], of: Callable[[Measured], float]
) -> float:
    return median(of(a) / of(b) for a, b in zip(above, below, strict=True))


def _measured(store: RedisStore, thin: Thin, name: str, commands: list[bytes]) -> Measured:
    used, began = _server_seconds(store), perf_counter()
    answers = thin.run(commands)
    wall, used = perf_counter() - began, _server_seconds(store) - used
    if wrong := [answer for answer in answers if EXPECTED[name] not in answer]:
        raise AssertionError(f"{name} answers {wrong[0]!r}")
    return Measured(len(commands) / wall, used / len(commands))


def _server_seconds(store: RedisStore) -> float:
    from token_allowance.stores.redis.wire import fields

    info = fields(store.wire.execute("INFO", "cpu"))
    name = "used_cpu_{}_main_thread"
    if name.format("sys") not in info:  # before Redis 7
        name = "used_cpu_{}"
    return float(info[name.format("sys")]) + float(info[name.format("user")])


def _open(store: RedisStore) -> list[Request]:
    """A request of each user, whose four counters are open."""
    from token_allowance.stores.redis.scripts import script

    for source in (
        EMPTY,
        *(script(name).source for name in ("reserve", "extend", "settle", "look")),
    ):
        store.wire.execute("SCRIPT", "LOAD", source)
    made = [_request(user) for user in range(USERS)]
    for request in made:
        store.reserve(request)
        store.wire.call(*_end(store, request, release=True))
    names = store.asking.names  # the policy is relied on meanwhile, as between two confirmations
    store.wire.execute("DEL", names.hold)
    store.wire.execute("SET", names.lease, 1, "PX", RELIED_MILLISECONDS)
    return made


def _request(user: int) -> Request:
    from token_allowance.attribution import Charge
    from token_allowance.decisions import reserving
    from token_allowance.limits import Attribution
    from token_allowance.plans import Attempt

    attempt = Attempt(
        provider="openai", model=OPENAI_MODEL, input_tokens=100, max_output_tokens=100
    )
    who = Attribution(
        tenant=f"tenant-{user % TENANTS}",
        user=f"user-{user}",
        feature=f"feature-{user % FEATURES}",
    )
    tried = reserving(lambda: attempt, who, Charge())
    request = next(tried)
    tried.close()
    return request


def _again(request: Request) -> Request:
    """The same asked for by another call."""
    from dataclasses import replace

    from token_allowance.entries import new_id

    id = new_id()
    return replace(request, id=id, row=request.row | {"id": str(id)})


def _reserve(store: RedisStore, request: Request) -> Question:
    from token_allowance.stores.redis import holds, questions

    wanted = holds.of_budgets(request.budgets, request.amounts)
    store.remember(request.id, wanted)
    return questions.reserve(
        store.asking.names, request, wanted, "", store.fresh, store.events_most
    )


def _extend(store: RedisStore, request: Request) -> Question:
    from dataclasses import replace

    from token_allowance.limits import Amounts
    from token_allowance.stores.redis import questions

    holds = store.known(request.id)
    if holds is None:
        raise AssertionError("it was not reserved")
    more = replace(request, amounts=Amounts(100, 50, calls=0))
    store.remember(request.id, holds.more(more.amounts))
    return questions.extend(store.asking.names, more, holds, None)


def _end(store: RedisStore, request: Request, *, release: bool) -> Question:
    from token_allowance import entries
    from token_allowance.limits import NOTHING, Amounts
    from token_allowance.stores.base import Settlement
    from token_allowance.stores.redis import ends
    from token_allowance.usage import Usage

    state, actual = ("released", NOTHING) if release else ("settled", Amounts(400, 170))
    used = Usage() if release else Usage(input_tokens=90, output_tokens=80)
    final = entries.ended(state, (), used, None, actual, None)
    row = request.row | final | {"price": request.row["price"], "provider_request_id": "req_1"}
    holds = store.forget(request.id)
    if holds is None:
        raise AssertionError("it was not reserved")
    ended = Settlement(id=request.id, actual=actual, row=row)
    return ends.question(store.asking.names, ended, row, holds, ends.NORMAL)


def _commands(store: RedisStore, kinds: list[Request], number: int) -> dict[str, list[bytes]]:
    """What every script is asked in one round: the extended calls are the ones that end."""
    calls = [_again(random.choice(kinds)) for _ in range(2 * number)]
    reserves = [_reserve(store, call) for call in calls]
    extends = [_extend(store, call) for call in calls[:number]]
    settles = [_end(store, call, release=False) for call in calls[:number]]
    releases = [_end(store, call, release=True) for call in calls[number:]]
    sha = sha1(EMPTY, usedforsecurity=False).hexdigest()
    run = _run_id(store)
    return {
        "PING": [_packed("PING")] * number,
        "empty script": [_packed("EVALSHA", sha, 0)] * number,
        "reserve": [_script(question, run) for question in reserves],
        "extend": [_script(question, run) for question in extends],
        "settle": [_script(question, run) for question in settles],
        "release": [_script(question, run) for question in releases],
    }


def _run_id(store: RedisStore) -> str:
    from token_allowance.stores.redis.wire import fields

    return fields(store.wire.execute("INFO", "server"))["run_id"]


def _script(question: Question, run: str) -> bytes:
    script, keys, (epoch, *arguments) = question
    return _packed("EVALSHA", script.sha, len(keys), *keys, f"{epoch}:{run}", *arguments)


def _packed(*command: Any) -> bytes:
    import hiredis

    packed: bytes = hiredis.pack_command(command)
    return packed


async def _pairs(store: RedisStore, kinds: list[Request], number: int, *, pooled: bool) -> float:
    """Pairs per second of reserve and settle, written before, by many tasks of one loop."""
    from redis.asyncio import Redis

    client = Redis.from_url(STORES["Redis"][1]["URL"], max_connections=TASKS)
    run = _run_id(store)

    async def by_pool(question: Question) -> Any:
        script, keys, (epoch, *arguments) = question
        sent = f"{epoch}:{run}"
        return await client.evalsha(script.sha.decode(), len(keys), *keys, sent, *arguments)

    ask = by_pool if pooled else store.swift.ask
    calls = [_again(random.choice(kinds)) for _ in range(number)]
    waiting = iter([(_reserve(store, c), _end(store, c, release=False)) for c in calls])

    async def work() -> None:
        for pair in waiting:
            for question in pair:
                answer = await ask(question)
                if not answer or answer[0] not in (b"admitted", b"settled"):
                    raise AssertionError(f"a script answers {answer!r}")

    async with client:
        for _ in range(9):  # connections are made before the clock runs
            await asyncio.gather(*(ask(_look(store)) for _ in range(TASKS)))
        began = perf_counter()
        await asyncio.gather(*(work() for _ in range(TASKS)))
    return number / (perf_counter() - began)


def _look(store: RedisStore) -> Question:
    from token_allowance.stores.redis import questions

    return questions.look(store.asking.names)
