"""Metered calls of coroutines on Redis: decided on the event loop, which never waits for a server.

The same outcomes as in a thread, whatever fails and wherever a call is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from project.provider import Reply
from tests.fault_proxy import BLACK_HOLE, CUT_AFTER, CUT_BEFORE, SWALLOW, Fault
from tests.metering import RESERVED, create, micros
from tests.redis_labs import SLACK_SECONDS, TIMEOUT_SECONDS, WHO, RedisLab
from token_allowance import allowance, policy, signals, threads
from token_allowance.exceptions import AllowanceExceeded, CapExceeded, StoreUnavailable
from token_allowance.models import DegradeRule
from token_allowance.stores import connections as own_connections
from token_allowance.stores.redis import RedisStore, swift, versions, wire

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

FIXED = Reply(input_tokens=40, output_tokens=9)
COST = micros("openai", 40, 9)
HELD = RESERVED["openai"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "PATIENT", 0)


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every test of this file fails if anything waits for a server on an event loop."""
    found: list[str] = []

    def watch(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            if threads.on_loop():
                found.append(f"{owner.__name__}.{name}")
            return real(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(own_connections.OwnConnections, "run")
    watch(wire.Wire, "_run")
    watch(wire.Link, "__init__")
    yield found
    assert found == []


@pytest.fixture
def lab(redis_server: Any) -> Iterator[RedisLab]:
    with opened(RedisLab(redis_server)) as lab:
        yield lab


@contextmanager
def opened(made: RedisLab) -> Iterator[RedisLab]:
    """Its counters are open, and its policy is known and may be relied on for a while."""
    with made as lab:
        lab.provider.script(default=FIXED)
        learn(lab)
        yield lab


def learn(lab: RedisLab) -> None:
    """Make a call under the policy of now, and let it be relied on for as long as a test takes."""
    names, execute = lab.budgets.asking.names, lab.budgets.wire.execute
    execute("DEL", names.lease)
    lab.call()
    execute("DEL", names.hold)
    execute("SET", names.lease, 1, "PX", 600_000)


@pytest.fixture
def asked(lab: RedisLab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What threads ask of the store."""
    found: list[str] = []

    def note(name: str) -> None:
        real = getattr(lab.budgets, name)

        def noted(*args: Any, **options: Any) -> Any:
            found.append(name)
            return real(*args, **options)

        monkeypatch.setattr(lab.budgets, name, noted)

    for name in ("reserve", "settle", "extend"):
        note(name)
    return found


def use(lab: RedisLab, work: Callable[[Any], Awaitable[Any]], **metering: Any) -> Any:
    """Run a coroutine with an asynchronous client, charged to who the lab's calls are."""

    async def run() -> Any:
        with allowance.charge_to(**WHO):
            async with lab.aclient("openai", **metering) as client:
                return await work(client)

    return asyncio.run(run())


async def gathered(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_a_call_uses_no_thread(lab: RedisLab, asked: list[str]) -> None:
    async def work(client: Any) -> None:
        for stream in (False, True):
            answer = await create(client, stream=stream)
            if stream:
                assert [event async for event in answer]
        async with allowance.call(provider="openai", model="gpt-5-mini", input_tokens=9) as call:
            call.record(allowance.Usage(9, 2))

    use(lab, work)
    assert asked == []
    assert [row.cost_micros for row in lab.rows(4)] == [COST, COST, COST, 13]
    assert {row.user for row in lab.rows()} == {"u1"}
    assert lab.held()[0] == (3 * COST + 13, 0)


def test_a_policy_that_is_not_known_is_read_in_a_thread(lab: RedisLab, asked: list[str]) -> None:
    lab.budgets.wire.execute("DEL", lab.budgets.asking.names.lease)
    lab.price("openai", "gpt-5-nano", 1, 1)  # a new policy: everything is read anew
    use(lab, create)
    assert asked == ["reserve", "reserve"]  # the first is told that it is out of date
    assert [row.cost_micros for row in lab.rows(2)] == [COST] * 2


def test_a_policy_that_a_thread_is_loading_is_waited_for_in_a_thread(
    lab: RedisLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy._current, "_policy", None)

    async def work(client: Any) -> None:
        lock = policy._current._lock
        assert lock.acquire()
        threading.Timer(1.0, lock.release).start()
        task = asyncio.ensure_future(create(client))
        await asyncio.sleep(0.2)  # a second, if the loop waits for it
        assert lock.locked()
        await task

    use(lab, work)
    assert lab.requests() == len(lab.rows(2)) == 2


def test_one_thread_confirms_the_policy_for_all_tasks(
    lab: RedisLab, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmations: list[int] = []
    real = versions.confirm

    def confirm(store: RedisStore) -> int:
        confirmations.append(real(store))
        return confirmations[-1]

    monkeypatch.setattr(versions, "confirm", confirm)

    async def work(client: Any) -> None:
        await create(client)  # it is connected
        await asyncio.to_thread(lab.budgets.wire.execute, "DEL", lab.budgets.asking.names.lease)
        await asyncio.gather(*(create(client) for _ in range(20)))

    use(lab, work)
    assert asked == []
    assert 1 <= len(confirmations) <= 4  # an answer may be on its way when the first is done
    assert [row.cost_micros for row in lab.rows(22)] == [COST] * 22


def test_a_policy_that_has_changed_is_obeyed_whoever_confirms_it(lab: RedisLab) -> None:
    async def work(client: Any) -> None:
        await create(client)
        await lab.ashrink("calls", 3)
        await asyncio.to_thread(lab.budgets.wire.execute, "DEL", lab.budgets.asking.names.lease)
        calls = await gathered(create(client) for _ in range(10))
        assert sum(isinstance(each, AllowanceExceeded) for each in calls) == 9

    use(lab, work)
    assert lab.requests() == len(lab.rows(3)) == 3


def test_one_more_tenant_is_looked_up_in_a_thread_and_then_known(
    lab: RedisLab, asked: list[str]
) -> None:
    async def work(client: Any) -> None:
        with allowance.charge_to(tenant="globex"):
            await create(client)
            await create(client)

    use(lab, work)
    assert asked == ["reserve"]
    assert [row.tenant for row in lab.rows(3)] == ["acme", "globex", "globex"]


def test_a_cap_that_may_leave_the_process_is_counted_in_a_thread(
    lab: RedisLab, asked: list[str]
) -> None:
    """A task header may share it at any moment, and waits for the calls that it has let in."""

    async def work(client: Any) -> None:
        with allowance.charge_to(max_calls=2):
            calls = await asyncio.gather(
                *(create(client) for _ in range(3)), return_exceptions=True
            )
        assert sum(isinstance(each, CapExceeded) for each in calls) == 1

    use(lab, work)
    assert asked == ["reserve", "reserve"]
    assert lab.requests() == len(lab.rows(3)) == 3


def test_a_cap_of_the_client_is_counted_on_the_loop(lab: RedisLab, asked: list[str]) -> None:
    async def work(client: Any) -> None:
        calls = await gathered(create(client) for _ in range(3))
        assert sum(isinstance(each, CapExceeded) for each in calls) == 1

    use(lab, work, max_calls=2)
    assert asked == []
    assert lab.requests() == len(lab.rows(3)) == 3


def test_who_listens_to_the_ends_of_calls_may_wait(lab: RedisLab, asked: list[str]) -> None:
    heard: list[tuple[bool, int]] = []

    def listen(sender: object, cost_micros: int, **facts: object) -> None:
        heard.append((threads.on_loop(), cost_micros))

    signals.call_finished.connect(listen)
    try:
        use(lab, create)
    finally:
        signals.call_finished.disconnect(listen)
    assert (heard, asked) == ([(False, COST)], [])


# The same outcomes as in a thread

OUTCOMES: dict[str, tuple[Reply, dict[str, Any]]] = {
    "answered": (FIXED, {}),
    "streamed": (FIXED, {"stream": True}),
    "refused by the provider": (Reply(status=400), {}),
    "failed": (Reply(status=500), {}),
    "half a body": (Reply(text="a b c d", drop_after_chunks=1), {}),
    "stream cut": (
        Reply(text=" windy" * 16, chunks=4, drop_after_chunks=2, input_tokens=40),
        {"stream": True},
    ),
    "reset": (Reply(reset_connection=True), {}),
    "no usage": (Reply(usage=None, no_usage_even_if_asked=True), {}),
    "never answered": (Reply(hang=True), {"timeout": 0.3}),
    "too large": (FIXED, {"max_completion_tokens": 9_000_000}),
    "of no price": (FIXED, {"model": "gpt-unheard-of"}),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_outcome_is_that_of_a_thread(lab: RedisLab, outcome: str) -> None:
    reply, options = OUTCOMES[outcome]
    lab.provider.script([reply, reply])
    errors: list[str] = []
    try:
        with lab.client("openai") as client, allowance.charge_to(**WHO):
            answer = create(client, **options)
            if options.get("stream"):
                list(answer)
    except Exception as error:
        errors.append(type(error).__name__)
    before, sent = lab.held(), lab.requests()

    async def work(client: Any) -> None:
        answer = await create(client, **options)
        if options.get("stream"):
            assert [event async for event in answer]

    try:
        use(lab, work)
    except Exception as error:
        errors.append(type(error).__name__)
    assert len(errors) in (0, 2)
    assert len(set(errors)) <= 1
    _, *ended = [
        (row.state, row.flags, row.cost_micros, row.input_tokens, row.output_tokens)
        for row in lab.rows()
    ]
    assert ended == ended[:1] * len(ended)
    assert len(ended) in (0, 2)
    after = lab.held()
    assert [2 * b[0] - COST for b in before[:3]] == [a[0] for a in after[:3]]
    assert {reserved for _, reserved in after} == {0}
    assert lab.requests() - sent == sent - 1


def test_a_budget_that_is_used_up_refuses(lab: RedisLab, asked: list[str]) -> None:
    lab.shrink("calls", 3)
    learn(lab)
    asked.clear()

    async def work(client: Any) -> None:
        await create(client)
        for _ in range(2):
            with pytest.raises(AllowanceExceeded) as caught:
                await create(client)
            assert caught.value.reason == "exhausted"

    use(lab, work)
    assert lab.requests() == len(lab.rows(3)) == 3
    assert asked == ["reserve", "reserve"]  # to be told all figures


def test_a_cheaper_model_is_served_without_a_thread(lab: RedisLab, asked: list[str]) -> None:
    lab.price("openai", "gpt-5-nano", 1, 1)
    DegradeRule.objects.create(from_model="gpt-5-mini", to_model="gpt-5-nano")
    lab.limit("calls", 100, feature="chat", degrade_at=1)
    with allowance.charge_to(feature="chat"):
        learn(lab)
        lab.call()  # degraded, in a thread
    asked.clear()

    async def work(client: Any) -> None:
        with allowance.charge_to(feature="chat"):
            await create(client)

    use(lab, work)
    assert asked == []
    rows = lab.rows(4)
    assert [row.model for row in rows] == ["gpt-5-mini", "gpt-5-mini", "gpt-5-nano", "gpt-5-nano"]
    assert rows[-1].flags == ["degraded"]


def test_a_switch_is_obeyed_at_once(lab: RedisLab) -> None:
    async def work(client: Any) -> None:
        await create(client)
        await allowance.aengage(tenant="acme", reason="runaway", by="ann")
        with pytest.raises(allowance.SwitchEngaged):
            await create(client)

    use(lab, work)
    assert lab.requests() == len(lab.rows(2)) == 2


@pytest.mark.parametrize("loops", [1, 4])
def test_many_tasks_of_several_loops_use_a_budget_up_exactly(lab: RedisLab, loops: int) -> None:
    lab.shrink("calls", 32)
    learn(lab)
    each = 60 // loops

    async def work(client: Any) -> int:
        calls = await gathered(create(client) for _ in range(each))
        assert {type(call) for call in calls if isinstance(call, Exception)} <= {AllowanceExceeded}
        return sum(not isinstance(call, Exception) for call in calls)

    with ThreadPoolExecutor(loops) as pool:
        served = sum(pool.map(lambda _: use(lab, work), range(loops)))
    assert served == 30
    assert lab.requests() == len(lab.rows(32)) == 32


def test_who_waits_in_line_is_not_overtaken_on_a_loop(redis_server: Any) -> None:
    with opened(RedisLab(redis_server, WAIT_SECONDS=5)) as lab:
        lab.limit("tokens", 100, feature="tight")
        order: list[int] = []

        async def call(tokens: int, hold_seconds: float) -> None:
            async with allowance.call(
                provider="openai", model="gpt-5-mini", input_tokens=tokens, max_output_tokens=0
            ) as held:
                order.append(tokens)
                await asyncio.sleep(hold_seconds)
                held.release()

        async def work(client: Any) -> None:
            with allowance.charge_to(feature="tight"):
                first = asyncio.ensure_future(call(60, 0.6))
                await asyncio.sleep(0.1)
                big = asyncio.ensure_future(call(90, 0))
                await asyncio.sleep(0.2)
                small = asyncio.ensure_future(call(20, 0))  # there would be room for it
                await asyncio.gather(first, big, small)

        use(lab, work)
        assert order == [60, 90, 20]


# Cancelled


class Cancelled:
    """Awaits what it is given, and is cancelled where it is suspended for the ``at``-th time.

    ``late``: only when what it waits for there has arrived, and before it is told so.
    """

    def __init__(self, awaited: Awaitable[Any], at: int, late: bool) -> None:
        self.awaited, self.at, self.late = awaited, at, late
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.awaited.__await__()
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self.suspended += 1
            if self.suspended == self.at:
                if self.late and hasattr(waits_for, "add_done_callback"):
                    blocking = waits_for._asyncio_future_blocking
                    waits_for.add_done_callback(lambda _: task.cancel())
                    waits_for._asyncio_future_blocking = blocking
                else:
                    task.cancel()
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_cancelled_at_any_await_a_call_leaves_nothing_held_and_nothing_uncharged(
    lab: RedisLab, stream: bool, late: bool
) -> None:
    async def call(client: Any) -> None:
        answer = await create(client, stream=stream)
        if stream:
            assert [event async for event in answer]

    whole = cancelled = 0

    async def work(client: Any) -> bool:
        await create(client)
        wrapped = Cancelled(call(client), at, late)
        try:
            await asyncio.ensure_future(_awaited(wrapped))
        except asyncio.CancelledError:
            return True
        return wrapped.suspended >= at  # its end was beyond recall

    at = 1
    while use(lab, work):
        cancelled += 1
        at += 1
        assert at < 100
    assert cancelled > 3
    rows = lab.rows()
    assert {row.state for row in rows} <= {"settled", "released"}
    whole = sum(row.flags == [] for row in rows if row.state == "settled")
    assert whole >= 1 + at + 1  # the first of each loop, and the last whole
    assert sum(row.state == "settled" for row in rows) >= lab.requests()
    assert {reserved for _, reserved in lab.held()} == {0}


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what


def test_a_cancelled_reserve_that_arrives_late_holds_nothing(lab: RedisLab) -> None:
    """Also if nobody calls afterwards: the release does not wait for the next call."""
    late = threading.Event()

    async def work(client: Any) -> None:
        await create(client)
        lab.proxy.fault(Fault(until=late), "reserve")
        before = lab.proxy.count("reserve")
        task = asyncio.ensure_future(create(client))
        while lab.proxy.count("reserve") == before:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    use(lab, work)
    deadline = time.monotonic() + 10
    while lab.proxy.count("settle") < 3:  # two calls, and the release
        assert time.monotonic() < deadline
        time.sleep(0.01)
    late.set()
    time.sleep(0.2)
    assert lab.requests() == 2
    assert {reserved for _, reserved in lab.held()} == {0}


def test_a_settlement_whose_loop_ends_is_applied_in_a_thread(lab: RedisLab) -> None:
    stuck = threading.Event()

    async def work(client: Any) -> None:
        await create(client)
        lab.proxy.fault(Fault(executed=False, answered=False, until=stuck), "settle")
        before = lab.proxy.count("settle")
        task = asyncio.ensure_future(create(client))
        while lab.proxy.count("settle") == before:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    use(lab, work)
    stuck.set()
    threads.drain()
    assert [row.cost_micros for row in lab.rows(3)] == [COST] * 3
    assert lab.held()[0] == (3 * COST, 0)


# Faults of the server


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("reserve", CUT_AFTER),
        ("reserve", CUT_BEFORE),
        ("settle", SWALLOW),
        ("settle", CUT_AFTER),
        ("settle", CUT_BEFORE),
    ],
)
def test_an_answer_of_the_server_that_is_lost_changes_nothing(
    lab: RedisLab, operation: str, fault: Fault
) -> None:
    async def work(client: Any) -> None:
        await create(client)
        lab.proxy.fault(fault, operation)
        await create(client)
        await create(client)

    use(lab, work)
    assert [(row.state, row.cost_micros) for row in lab.rows(4)] == [("settled", COST)] * 4
    assert lab.held()[0] == (4 * COST, 0)
    assert lab.requests() == 4


def test_a_reserve_that_is_never_answered_refuses_and_holds_nothing(lab: RedisLab) -> None:
    """After one timeout, as in a thread."""

    async def work(client: Any) -> None:
        await create(client)
        lab.proxy.fault(SWALLOW, "reserve")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await create(client)
        assert time.monotonic() - began < 1.5 * TIMEOUT_SECONDS + SLACK_SECONDS
        await create(client)

    use(lab, work)
    assert sorted(row.state for row in lab.rows(4)) == ["released", *["settled"] * 3]
    assert lab.held()[0] == (3 * COST, 0)
    assert lab.requests() == 3


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("silent", [False, True], ids=["gone", "silent"])
def test_without_the_server_the_same_fail_mode_decides(
    redis_server: Any, mode: str, silent: bool
) -> None:
    with opened(RedisLab(redis_server, MODE=mode)) as lab:

        async def work(client: Any) -> None:
            await create(client)
            if silent:
                lab.proxy.always(BLACK_HOLE)
            else:
                lab.proxy.down()
            began = time.monotonic()
            for _ in range(4):
                if mode == "observe":
                    await create(client)
                    continue
                with pytest.raises(StoreUnavailable) as caught:
                    await create(client)
                assert caught.value.status == 503
            assert time.monotonic() - began < 3 * TIMEOUT_SECONDS + 4 * SLACK_SECONDS
            began = time.monotonic()
            calls = (create(client) for _ in range(20))
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - began < 5  # the breaker is open
            assert {type(each) is StoreUnavailable for each in found} == {mode == "enforce"}

        use(lab, work)
        lab.mend()
        made = 26 if mode == "observe" else 2
        assert lab.requests() == made
        assert [row.cost_micros for row in lab.rows(made)] == [COST] * made
        flagged = sum("unmetered_admission" in row.flags for row in lab.rows())
        assert flagged == made - 2


def test_an_answer_is_returned_although_the_server_died_and_is_charged_later_once(
    lab: RedisLab,
) -> None:
    async def work(client: Any) -> None:
        await create(client)
        lab.provider.script([Reply(delay_seconds=0.3, input_tokens=40, output_tokens=9)])
        task = asyncio.ensure_future(create(client))
        while lab.requests() < 3:
            await asyncio.sleep(0.01)
        lab.proxy.down()
        assert (await task).usage.total_tokens == 49

    use(lab, work)
    lab.mend()
    assert [row.cost_micros for row in lab.rows(3)] == [COST] * 3
    assert lab.held()[0] == (3 * COST, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes can be copied")
def test_a_copy_of_the_process_asks_by_a_connection_of_its_own(lab: RedisLab) -> None:
    """Its parent's is open, in a loop that goes on."""
    loop = asyncio.new_event_loop()

    async def calls(number: int) -> None:
        with allowance.charge_to(**WHO):
            for _ in range(number):
                held = allowance.call(provider="openai", model="gpt-5-mini", input_tokens=1)
                async with held as call:
                    call.record(allowance.Usage(1, 0))

    try:
        loop.run_until_complete(calls(2))
        child = os.fork()
        if child == 0:
            try:
                assert not lab.budgets.swift._links  # its parent's are not for it
                asyncio.run(calls(20))
                os._exit(0)
            finally:
                os._exit(1)
        loop.run_until_complete(calls(20))
        deadline = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        loop.close()
    assert ended[1] == 0
    assert lab.held()[0] == (COST + 42, 0)
