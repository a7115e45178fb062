"""charge_to: who pays, around any kind of function, and how much one run may use."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from project.provider import Reply
from tests.metering import Lab, create
from token_allowance import allowance
from token_allowance.attribution import NOBODY, current
from token_allowance.exceptions import CapExceeded, Unattributed


def who() -> str:
    """tenant/user/session/feature as a call made now would be charged."""
    return "/".join(current().attribution().as_dict().values())


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert current() is NOBODY


def test_a_block_says_who_pays_and_nests():
    with allowance.charge_to(tenant="acme", user=7, trace_id="t-1") as charge:
        assert who() == "acme/7//"
        assert charge is current()
        with allowance.charge_to(feature="agent", user="u_8", session="s"):
            assert who() == "acme/u_8/s/agent"
            assert current().trace_id == "t-1"
        assert who() == "acme/7//"
    assert who() == "///"


def test_a_block_that_fails_is_left():
    with pytest.raises(KeyError), allowance.charge_to(tenant="acme"):
        raise KeyError
    assert who() == "///"


def test_one_object_may_be_entered_again_and_within_itself():
    block = allowance.charge_to(tenant="acme", max_calls=1)
    with block as outer, block as inner:
        assert outer.runs[0] is not inner.runs[-1]
    with block as again:
        assert len(again.runs) == 1
        assert again.runs[0] is not outer.runs[0]


def test_an_asynchronous_block():
    async def body() -> list[str]:
        async with allowance.charge_to(tenant="acme"):
            inside = await asyncio.gather(_awho(), asyncio.to_thread(who), sync_to_async(who)())
        return [*inside, who()]

    assert asyncio.run(body()) == ["acme///"] * 3 + ["///"]


async def _awho() -> str:
    await asyncio.sleep(0)
    return "/".join((await current().aattribution()).as_dict().values())


def test_tasks_do_not_see_each_other():
    async def one(tenant: str) -> str:
        with allowance.charge_to(tenant=tenant):
            await asyncio.sleep(0.01)
            return who()

    async def both() -> list[str]:
        return list(await asyncio.gather(one("a"), one("b")))

    assert asyncio.run(both()) == ["a///", "b///"]


@pytest.mark.parametrize(
    "wrong",
    [{"tenant": ""}, {"user": "*"}, {"feature": "a\x00"}, {"session": "x" * 201}, {"trace_id": ""}],
)
def test_what_is_no_value_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))), allowance.charge_to(**wrong):
        pass


def test_a_callable_needs_a_function_to_decorate():
    with pytest.raises(TypeError, match="tenant"), allowance.charge_to(tenant=lambda: "acme"):
        pass


# Decorated


def test_a_function_with_values_from_its_arguments():
    @allowance.charge_to(
        tenant=lambda doc_id: f"t{doc_id}",
        user=lambda **given: given["user"],
        feature="digest",
        trace_id=lambda doc_id, user: f"{doc_id}-{user}",
    )
    def digest(doc_id: int, *, user: str = "nobody") -> tuple[str, str]:
        """Says who."""
        return who(), current().trace_id

    assert digest(3) == ("t3/nobody//digest", "3-nobody")
    assert digest(doc_id=4, user="ann") == ("t4/ann//digest", "4-ann")
    assert (digest.__name__, digest.__doc__) == ("digest", "Says who.")
    assert (
        str(inspect.signature(digest))
        == "(doc_id: 'int', *, user: 'str' = 'nobody') -> 'tuple[str, str]'"
    )
    assert "__signature__" in vars(digest)
    with pytest.raises(TypeError):
        digest()


def test_a_method():
    class Bot:
        tenant = "acme"

        @allowance.charge_to(tenant=lambda self: self.tenant, user=lambda text: text)
        def answer(self, text: str) -> str:
            return who()

    assert Bot().answer("hi") == "acme/hi//"


def test_a_coroutine_function():
    @allowance.charge_to(tenant=lambda t: t)
    async def ask(t: str) -> str:
        await asyncio.sleep(0)
        return who()

    assert inspect.iscoroutinefunction(ask)
    assert asyncio.run(ask("acme")) == "acme///"
    assert async_to_sync(ask)("acme") == "acme///"


def test_partials_and_objects_that_are_called_like_coroutines_and_generators():
    class Asked:
        async def __call__(self, t: str) -> str:
            await asyncio.sleep(0)
            return who()

    class Listed:
        def __call__(self, t: str) -> Iterator[str]:
            yield who()
            yield who()

    async def ask(t: str, much: int) -> str:
        return who()

    charged = allowance.charge_to(tenant=lambda t: t)
    for asked in (Asked(), functools.partial(ask, much=3), functools.partial(Asked())):
        assert inspect.iscoroutinefunction(charged(asked))
        assert asyncio.run(charged(asked)("acme")) == "acme///"
    for listed in (Listed(), functools.partial(Listed())):
        seen = [(value, who()) for value in charged(listed)("acme")]
        assert seen == [("acme///", "///")] * 2


def test_a_generator_is_charged_in_each_step_and_its_consumer_is_not():
    seen = []

    @allowance.charge_to(tenant="acme")
    def steps():
        try:
            seen.append((yield who()))
            with allowance.charge_to(feature="inner"):
                yield who()
                yield who()
        except KeyError:
            yield f"caught {who()}"
        finally:
            seen.append(f"closed {who()}")
        return "returned"

    running = steps()
    assert inspect.isgenerator(running)
    assert (next(running), who()) == ("acme///", "///")
    assert (running.send("sent"), who()) == ("acme///inner", "///")
    assert next(running) == "acme///inner"
    assert running.throw(KeyError()) == "caught acme///"
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert stop.value.value == "returned"
    assert seen == ["sent", "closed acme///"]


def test_a_generator_that_is_closed_early_ends_under_its_charge():
    seen = []

    @allowance.charge_to(tenant="acme")
    def steps():
        try:
            yield 1
        finally:
            seen.append(who())

    running = steps()
    next(running)
    running.close()
    assert seen == ["acme///"]
    with pytest.raises(StopIteration):
        next(running)


def test_an_exception_that_a_generator_does_not_catch_comes_out_of_throw():
    @allowance.charge_to(tenant="acme")
    def steps():
        yield 1

    running = steps()
    next(running)
    with pytest.raises(KeyError):
        running.throw(KeyError())


def test_an_asynchronous_generator():
    seen = []

    @allowance.charge_to(tenant="acme")
    async def steps():
        try:
            seen.append((yield who()))
            await asyncio.sleep(0)
            yield who()
        except KeyError:
            yield f"caught {who()}"
        finally:
            await asyncio.sleep(0)
            seen.append(f"closed {who()}")

    async def use() -> list[str]:
        running = steps()
        found = [await anext(running), who(), await running.asend("sent"), who()]
        found.append(await running.athrow(KeyError()))
        await running.aclose()
        early = steps()
        await anext(early)
        await early.aclose()
        return found + [value async for value in steps()]

    assert asyncio.run(use()) == [
        "acme///",
        "///",
        "acme///",
        "///",
        "caught acme///",
        "acme///",
        "acme///",
    ]
    assert seen == ["sent", "closed acme///", "closed acme///", None, "closed acme///"]


def test_a_task_object_is_refused():
    class Task:
        def apply_async(self) -> None: ...

        def __call__(self) -> None: ...

    for wrong in (Task(), "no function", classmethod(who)):
        with pytest.raises(TypeError, match="under the task decorator"):
            allowance.charge_to(feature="x")(wrong)


# Caps


def thread(function) -> Any:
    """Run in a thread that carries the context."""
    done: list[object] = []
    context = copy_context()
    worker = threading.Thread(target=lambda: done.append(context.run(function)))
    worker.start()
    worker.join()
    return done[0]


@pytest.mark.django_db(transaction=True)
def test_children_in_threads_share_the_cost_of_their_run_case_c40():
    """Three of 500,000 on 1,250,000 micro-dollars: the third is refused."""
    with Lab() as lab:
        call = {"provider": "openai", "model": "gpt-5-mini", "input_tokens": 500_000}

        def child() -> str:
            try:
                with allowance.call(**call, max_output_tokens=0) as reserved:
                    barrier.wait(10)
                    reserved.record(allowance.Usage(500_000))
                return "admitted"
            except CapExceeded as error:
                barrier.wait(10)
                return f"{error.code} {error.used} {error.needed}"

        barrier = threading.Barrier(3)
        with allowance.charge_to(max_cost="1.25"), ThreadPoolExecutor(3) as pool:
            contexts = [copy_context() for _ in range(3)]
            said = sorted(pool.map(lambda context: context.run(child), contexts))
        assert said == [
            "admitted",
            "admitted",
            "per_request_cost_exceeded 1000000 500000",
        ]
        assert lab.figures()["cost"] == (1_000_000, 0)


@pytest.mark.django_db(transaction=True)
def test_a_parent_and_its_children_share_the_calls_of_their_run_case_c40():
    with Lab() as lab, lab.client("openai") as client, allowance.charge_to(max_calls=10):
        lab.provider.script(default=Reply(input_tokens=1, output_tokens=1))

        def ask() -> str:
            try:
                create(client)
            except CapExceeded as error:
                return f"{error.used} of {error.amount}"
            return "made"

        def child() -> list[str]:
            with allowance.charge_to(feature="child"):
                return [ask() for _ in range(3)]

        assert [ask() for _ in range(4)] == ["made"] * 4
        assert [thread(child) for _ in range(2)] == [["made"] * 3] * 2
        assert thread(child) == ["10 of 10"] * 3
        assert ask() == "10 of 10"
        assert lab.requests() == len(lab.rows()) == 10


@pytest.mark.django_db(transaction=True)
def test_an_inner_cap_does_not_widen_the_outer():
    with Lab() as lab, lab.client("openai") as client, allowance.charge_to(max_calls=2):
        with allowance.charge_to(max_calls=9):
            create(client)
            create(client)
            with pytest.raises(CapExceeded) as caught:
                create(client)
        assert caught.value.amount == 2
        assert lab.requests() == 2


@pytest.mark.django_db(transaction=True)
def test_caps_of_a_decorated_function_are_for_each_of_its_runs():
    with Lab() as lab, lab.client("openai") as client:

        @allowance.charge_to(feature="digest", max_calls=2, trace_id="t")
        def digest() -> None:
            create(client)
            create(client)

        digest()
        digest()
        assert {(row.feature, row.trace_id) for row in lab.rows(4)} == {("digest", "t")}


@pytest.mark.django_db(transaction=True)
def test_a_cap_only_observed_is_noted():
    with Lab(MODE="observe") as lab, lab.client("openai") as client:
        with allowance.charge_to(max_calls=1):
            create(client)
            create(client)
        assert [row.flags for row in lab.rows(2)] == [[], ["would_refuse"]]


def test_a_cap_of_no_call_and_no_cost():
    with pytest.raises(ValueError, match=r"."), allowance.charge_to(max_cost="-1"):
        pass
    with pytest.raises(TypeError), allowance.charge_to(max_cost=0.5):
        pass


# Threads (case C80)


@pytest.mark.django_db(transaction=True)
def test_every_way_into_a_thread_that_carries_the_context_case_c80():
    with Lab() as lab, lab.client("openai") as client:

        async def by_loop() -> None:
            await asyncio.to_thread(create, client)
            await sync_to_async(create)(client)
            await sync_to_async(create, thread_sensitive=False)(client)

        for user in ("42", "43"):
            with allowance.charge_to(tenant="7", user=user):
                thread(lambda: create(client))
                asyncio.run(by_loop())
        assert [(row.tenant, row.user) for row in lab.rows(8)] == [("7", "42")] * 4 + [
            ("7", "43")
        ] * 4


@pytest.mark.django_db(transaction=True)
def test_a_thread_without_a_context_has_nobody_to_charge_case_c80():
    with Lab() as lab, lab.client("openai") as client:
        lab.limit("calls", 9, tenant="*", user="*")
        with allowance.charge_to(tenant="7", user="42"), ThreadPoolExecutor(1) as pool:
            with pytest.raises(Unattributed, match="no budget scope"):
                pool.submit(create, client).result()
            create(client)
        assert lab.requests() == len(lab.rows()) == 1


def test_a_generator_that_the_collector_closes_takes_nobody_elses_charge():
    def suspended():
        with allowance.charge_to(tenant="one"):
            yield

    left = suspended()
    copy_context().run(next, left)
    with allowance.charge_to(tenant="two"):
        left.close()
        assert current().attribution().tenant == "two"
    assert current() is NOBODY
