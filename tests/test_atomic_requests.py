"""ATOMIC_REQUESTS on PostgreSQL: what a call cost outlives its request, and while the model answers
no connection of the store is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from openai import OpenAI

from project.provider import FIXED_COST, ModelRequest, Provider, Reply
from token_allowance import allowance
from token_allowance.models import Counter, Limit, Price, Reservation
from token_allowance.stores.connections import OwnConnections

MODEL = "gpt-5-mini"
POOLS = "token_allowance.stores.connections._pools"
clients: list[Any] = []

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.test_atomic_requests"),
]


def ask(**options: Any) -> Any:
    messages = [{"role": "user", "content": "hello"}]
    return clients[0].chat.completions.create(model=MODEL, messages=messages, **options)


def break_transaction() -> None:
    Group.objects.create(name="host row")  # the name is taken: it must be unique


def succeeding(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="host row")
    ask()
    return HttpResponse()


def failing(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="host row")
    ask()
    raise RuntimeError("the view has a bug")


def breaking(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="host row")
    ask()
    break_transaction()
    return HttpResponse()


def catching(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="host row")
    try:
        with transaction.atomic():
            ask()
            break_transaction()
    except IntegrityError:
        return HttpResponse()
    raise AssertionError


def calling_when_broken(request: HttpRequest) -> HttpResponse:
    """The error is caught outside of any savepoint: the server will undo everything at the end."""
    Group.objects.create(name="host row")
    try:
        break_transaction()
    except IntegrityError:
        ask()
    return HttpResponse()


views = (succeeding, failing, breaking, catching, calling_when_broken)
urlpatterns = [path(view.__name__, view) for view in views]


@pytest.fixture
def provider(monkeypatch):
    Price.objects.create(provider="openai", model=MODEL, input_mtok=1, output_mtok=4)
    Limit.objects.create(window="month", unit="calls", amount=100)
    with Provider() as provider, OpenAI(api_key="any", base_url=provider.openai_url) as client:
        provider.script(default=FIXED_COST)
        monkeypatch.setattr(f"{__name__}.clients", [allowance.meter(client)])
        yield provider


@pytest.fixture
def atomic_requests(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def pool_of(monkeypatch):
    """Makes the store's pool hold this many connections, and keep them idle as in production."""
    pools: dict[str, OwnConnections] = {}
    monkeypatch.setattr(POOLS, pools)
    monkeypatch.setattr("token_allowance.stores.connections.in_tests", lambda: False)

    def make(most: int) -> OwnConnections:
        pools["default"] = OwnConnections("default", most=most)
        return pools["default"]

    yield make
    for pool in pools.values():
        pool.close()


def counters() -> list[tuple[int, int]]:
    return list(Counter.objects.values_list("used", "reserved"))


def states_of_others(*own: int) -> list[str]:
    """What the database's other connections are doing, these and the one that looks left out."""
    settings = connections.settings["default"]
    where = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    options = {name: settings[key] for name, key in where.items() if settings[key]}
    with psycopg.connect(dbname=settings["NAME"], **options) as looking:
        rows = looking.execute(
            "SELECT pid, state FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    return sorted(state for pid, state in rows if pid not in own)


@pytest.mark.parametrize(
    ("view", "status", "kept"),
    [
        (succeeding, 200, 1),
        (failing, 500, 0),
        (breaking, 500, 0),
        (catching, 200, 1),
        (calling_when_broken, 200, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_request_leaves_one_settled_row_whatever_becomes_of_its_transaction(
    provider, atomic_requests, view, status, kept
):
    response = Client(raise_request_exception=False).get(f"/{view.__name__}")
    assert response.status_code == status
    assert Group.objects.count() == kept
    rows = list(Reservation.objects.values_list("state", "flags", "cost_micros"))
    assert rows == [("settled", [], 500)]
    assert counters() == [(1, 0)]
    assert provider.totals().received == 1


def test_a_refused_request_is_rolled_back_and_leaves_no_row(provider, atomic_requests):
    Limit.objects.update(amount=0)
    response = Client().get("/succeeding")
    assert response.status_code == 429
    assert Group.objects.count() == Reservation.objects.count() == 0
    assert provider.totals().received == 0


def meanwhile(do: Callable[[], Any], into: list[Any]) -> Callable[[ModelRequest], Reply]:
    """A reply that is given after this has been done: what is seen of a call in flight."""

    def choose(request: ModelRequest) -> Reply:
        into.append(do())
        connections.close_all()
        return FIXED_COST

    return choose


def test_no_connection_is_open_for_us_while_the_model_answers(provider, atomic_requests):
    """A test run keeps no idle ones, so that only the request's own is left to be seen."""
    connection.ensure_connection()
    seen: list[list[str]] = []
    provider.script(meanwhile(states_of_others, seen))
    assert Client().get("/succeeding").status_code == 200
    assert seen == [["idle in transaction"]]  # ATOMIC_REQUESTS: Django's, with the host's row


def test_the_one_connection_of_the_pool_is_free_while_the_model_answers(
    provider, atomic_requests, pool_of
):
    pool_of(1)
    connection.ensure_connection()
    host = connection.connection.info.backend_pid

    def look_and_reserve() -> tuple[list[str], float]:
        states = states_of_others(host)
        began = time.monotonic()
        with allowance.call(provider="openai", model=MODEL, max_output_tokens=1):
            pass
        return states, time.monotonic() - began

    seen: list[tuple[list[str], float]] = []
    provider.script(meanwhile(look_and_reserve, seen))
    assert Client().get("/succeeding").status_code == 200
    [(states, seconds)] = seen
    assert states == ["idle"]
    assert seconds < 1
    assert counters() == [(2, 0)]


def test_c79_open_streams_hold_no_connection(provider, pool_of):
    pool_of(4)
    connection.ensure_connection()
    host = connection.connection.info.backend_pid
    provider.script(default=Reply(chunks=4, chunk_delay_seconds=0.6, text="four chunks of it"))
    streams = [ask(stream=True) for _ in range(10)]
    for stream in streams:
        next(iter(stream))
    assert provider.totals().open == 10
    assert counters() == [(0, 10)]

    began = time.monotonic()
    with allowance.call(provider="openai", model=MODEL, max_output_tokens=1):
        pass
    assert time.monotonic() - began < 1
    states = states_of_others(host)
    assert set(states) == {"idle"}
    assert len(states) <= 4

    assert provider.totals().open == 10
    for stream in streams:
        assert len(list(stream)) > 1
    assert counters() == [(11, 0)]
    assert Reservation.objects.filter(state="settled", flags=[]).count() == 10


def test_a_call_costs_two_statements(provider, pool_of):
    """Once the limits, prices and counters are known: one to reserve, one to settle."""
    pool = pool_of(1)
    ask()
    sent: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        sent.append(sql)
        return execute(sql, *arguments)

    pool.run(lambda borrowed: borrowed.execute_wrappers.append(note))
    ask()
    assert len(sent) == 2
    assert "reserve" in sent[0]
    assert "settle" in sent[1]
