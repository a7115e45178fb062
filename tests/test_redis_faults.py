"""Redis that refuses, dies or says nothing: our own fail mode decides (cases C57 and C58)."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

from project.provider import Reply
from tests import servers
from tests.fault_proxy import BLACK_HOLE, CUT_BEFORE, Fault
from tests.metering import SDKS, create, micros
from tests.redis_labs import SLACK_SECONDS, TIMEOUT_SECONDS, WHO, RedisLab, seconds
from token_allowance import allowance
from token_allowance.exceptions import StoreUnavailable

pytestmark = pytest.mark.django_db(transaction=True)

FIXED = Reply(input_tokens=40, output_tokens=9)
COST = micros("openai", 40, 9)
labs: list[RedisLab] = []  # the one that the view calls


def model_view(request):
    labs[-1].call()
    return HttpResponse("answered")


urlpatterns = [path("model/", model_view)]


@pytest.fixture
def server(redis_server):
    return redis_server


@contextmanager
def lab_on(server, **settings):
    with started(RedisLab(server, **settings)) as lab:
        yield lab


@contextmanager
def started(made):
    with made as lab:
        lab.provider.script(default=FIXED)
        labs.append(lab)
        try:
            with override_settings(ROOT_URLCONF=__name__):
                yield lab
        finally:
            labs.pop()


@contextmanager
def read_only(server):
    """Reads work, writes do not: a replica whose primary is gone."""
    server.ask("REPLICAOF", "127.0.0.1", servers.free_port())
    try:
        yield
    finally:
        server.promote()


@contextmanager
def out_of_memory(server):
    server.ask("CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        server.ask("CONFIG", "SET", "maxmemory", 0)


refusing = pytest.mark.parametrize("refuses", [read_only, out_of_memory])


@refusing
def test_c57_enforcing_answers_503_and_calls_nobody_where_redis_refuses_writes(server, refuses):
    with lab_on(server) as lab:
        lab.call()
        before = lab.dump()
        with refuses(server):
            answer = Client().get("/model/")
            assert answer.status_code == 503
            assert answer["Content-Type"] == "application/problem+json"
            assert answer.json()["code"] == "store_unavailable"
            assert int(answer["Retry-After"]) >= 1
            assert lab.requests() == 1
            assert lab.dump() == before
        lab.mend()
        assert lab.held() == [(COST, 0)] * 3 + [(1, 0), (49, 0)]
        lab.call()
        assert lab.held()[0] == (2 * COST, 0)


@refusing
@pytest.mark.parametrize("settings", [{"MODE": "observe"}, {"ON_STORE_ERROR": "admit"}], ids=str)
def test_c57_observing_calls_and_flags_where_redis_refuses_writes(server, refuses, settings):
    with lab_on(server, **settings) as lab:
        lab.call()
        with refuses(server):
            assert Client().get("/model/").content == b"answered"
        assert lab.requests() == 2
        lab.mend()
        lab.call()
        rows = lab.rows(3)
        assert "unmetered_admission" in rows[1].flags
        assert [(row.state, row.cost_micros) for row in rows] == [("settled", COST)] * 3
        assert (rows[1].tenant, rows[1].user) == ("acme", "u1")
        assert lab.held() == [(3 * COST, 0)] * 3 + [(3, 0), (3 * 49, 0)]


def test_c57_a_call_that_had_begun_is_settled_though_memory_is_full(server):
    with lab_on(server) as lab:
        with allowance.charge_to(**WHO), call() as one:
            one.record(allowance.Usage(10))
            server.ask("CONFIG", "SET", "maxmemory", 1)
        assert lab.held()[0] == (10, 0)
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert lab.row().state == "settled"


def call():
    return allowance.call(
        provider="openai", model="gpt-5-mini", input_tokens=20, max_output_tokens=0
    )


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_c57_the_answer_is_returned_though_redis_dies_before_it_is_settled(
    server, sdk, stream, asynchronous
):
    with lab_on(server) as lab:
        lab.call(sdk)
        lab.proxy.fault(CUT_BEFORE, "settle", times=1000)
        assert lab.call(sdk, stream=stream, asynchronous=asynchronous)
        cost = micros(sdk, 40, 9)
        assert lab.held()[0][0] == cost
        assert lab.held()[0][1] > 0
        lab.mend()
        assert lab.held()[0] == (2 * cost, 0)
        lab.mend()
        lab.call(sdk)
        assert lab.held()[0] == (3 * cost, 0)
        assert [(row.state, row.cost_micros) for row in lab.rows(3)] == [("settled", cost)] * 3


@pytest.mark.parametrize("wipes", [False, True], ids=["its data are kept", "it comes back empty"])
def test_c57_redis_is_killed_during_a_call_and_starts_again(server, durable_redis, wipes):
    with lab_on(server if wipes else durable_redis) as lab:
        lab.call()
        with allowance.charge_to(**WHO), call() as one:
            one.record(allowance.Usage(11))
            lab.budgets.drain()
            lab.server.halt()
        lab.server.resume()
        lab.mend()
        lab.call()
        assert [row.cost_micros for row in lab.rows(3)] == [COST, 11, COST]
        assert lab.held() == [(2 * COST + 11, 0)] * 3 + [(3, 0), (2 * 49 + 11, 0)]


def test_c48_used_ten_reserved_four_redis_down_at_settle_actual_three(server):
    with lab_on(server) as lab, allowance.charge_to(**WHO):
        with call() as first:
            first.record(allowance.Usage(10))
        with call() as second:
            second.record(allowance.Usage(3))
            lab.proxy.down()
        lab.mend()
        assert lab.held()[0] == (13, 0)


# C58: nothing listens, or what listens never answers


def nothing_listens(lab):
    lab.proxy.down()


def black_hole(lab):
    lab.proxy.always(BLACK_HOLE)


gone = pytest.mark.parametrize("goes", [nothing_listens, black_hole])


@gone
@pytest.mark.parametrize("ignores", [True, False], ids=["IGNORE_EXCEPTIONS", "raises"])
@pytest.mark.parametrize("mode", ["refuse", "admit"])
def test_c58_our_fail_mode_decides_whatever_the_cache_ignores(server, goes, ignores, mode):
    made = RedisLab(server, options={"CACHE": "budgets"}, ON_STORE_ERROR=mode)
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": made.options.pop("URL"),
        "OPTIONS": {"IGNORE_EXCEPTIONS": ignores},
    }
    with override_settings(CACHES={"budgets": cache}), started(made) as lab:
        lab.call()
        quick = seconds(lab.call)
        goes(lab)
        if mode == "refuse":
            took = seconds(lambda: Client().get("/model/"))
            assert Client().get("/model/").status_code == 503
            assert lab.requests() == 2
        else:
            took = seconds(lab.call)
            assert lab.requests() == 3
        assert took <= quick + TIMEOUT_SECONDS + SLACK_SECONDS
        lab.mend()
        assert lab.held()[0] == (lab.requests() * COST, 0)


@gone
def test_c58_after_a_few_failures_redis_is_left_alone_for_a_moment(server, goes):
    with lab_on(server) as lab:
        lab.call()
        goes(lab)
        for _ in range(4):
            with pytest.raises(StoreUnavailable):
                lab.call()
        asked, connected = len(lab.proxy.seen), lab.proxy.accepted
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                assert seconds(lab.call) < SLACK_SECONDS
        assert (len(lab.proxy.seen), lab.proxy.accepted) == (asked, connected)
        assert lab.requests() == 1
        lab.proxy.heal()
        lab.budgets.wire.breaker._until = 0.0
        lab.call()
        assert lab.requests() == 2


def test_c58_an_open_breaker_tries_again_by_itself(server):
    with lab_on(server) as lab:
        lab.call()
        lab.proxy.down()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                lab.call()
        lab.proxy.heal()
        lab.budgets.wire.breaker._clock = lambda: 10.0**9
        lab.call()
        lab.call()
        assert lab.held()[0] == (3 * COST, 0)


def test_a_script_that_fails_follows_the_fail_mode(server):
    with lab_on(server) as lab:
        lab.call()
        for text in ("ERR user_script:1: attempt to index nil", "NOPERM no", "BUSY a script runs"):
            lab.proxy.fault(Fault(error=text), "reserve", times=2)
            answer = Client().get("/model/")
            assert (answer.status_code, lab.requests()) == (503, 1)
            lab.proxy.heal()
        assert lab.held()[0] == (COST, 0)


def test_coroutines_are_refused_within_one_timeout_of_all_together(server):
    with lab_on(server) as lab:
        lab.call()
        lab.proxy.always(BLACK_HOLE)

        async def many():
            with allowance.charge_to(**WHO):
                async with lab.aclient("openai") as client:
                    asking = [create(client) for _ in range(8)]
                    return await asyncio.gather(*asking, return_exceptions=True)

        found = []
        took = seconds(lambda: found.extend(asyncio.run(many())))
        assert {type(error) for error in found} == {StoreUnavailable}
        assert took < 3 * TIMEOUT_SECONDS + 2 * SLACK_SECONDS
        assert lab.requests() == 1
