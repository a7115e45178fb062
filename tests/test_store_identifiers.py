"""Names of tenants and users that would break a key that is glued together carelessly."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores import NOW, budget, charge, figures, refused_by, request, reserve, rows
from token_allowance.counters import budget_of
from token_allowance.limits import (
    IDENTIFIER_LENGTH,
    Attribution,
    Budget,
    Unit,
    checked_identifier,
)
from token_allowance.stores.base import Store
from token_allowance.windows import Window

HOSTILE = [
    "a|b", "a,user=b", "a=b", "%", "%7C", "100%", "%s", "'; DROP TABLE x; --", '"', "\\", "$1",
    "{}", "global", "-", " ", "a ", " a", "A", "a", "ä", "a\u0308", "👩", "用户", "مستخدم",
    "x" * IDENTIFIER_LENGTH, "用" * IDENTIFIER_LENGTH, "null", "0", "*a", "/", "a/b/c",
]  # fmt: skip


def test_hostile_names_have_budgets_of_their_own_in_every_store(store: Store) -> None:
    tenants = [budget(amount=100, tenant=name) for name in HOSTILE]
    users = [budget("tokens", 100, tenant="acme", user=name) for name in HOSTILE]
    for number, (tenant, user) in enumerate(zip(tenants, users, strict=True), 1):
        charge(store, tenant, cost=number)
        charge(store, user, tokens=number)
    expected = [(number, 0) for number in range(1, len(HOSTILE) + 1)]
    assert figures(store, *tenants) == expected
    assert figures(store, *users) == expected
    assert store.rebuild(NOW) == []  # reads every key back
    assert {row["tenant"] for row in rows(store).values()} == {*HOSTILE, "acme"}


@pytest.mark.parametrize("name", ["a|b", "用户", "'; DROP TABLE x; --", "%s"])
def test_a_hostile_name_is_seeded_from_its_own_rows(store: Store, name: str) -> None:
    charge(store, cost=60, tenant=name)
    charge(store, cost=60, tenant="other")
    made = budget(amount=100, tenant=name, since=int(NOW.timestamp()) * 1_000_000)
    assert figures(store, made) == [(60, 0)]
    assert refused_by(reserve(store, request(made, cost=41))) == [made]


@pytest.mark.parametrize("name", ["tenant", "user", "session", "feature"])
@pytest.mark.parametrize(
    "value", ["a\x00b", "a\nb", "\x7f", "\ud800", "x" * (IDENTIFIER_LENGTH + 1), "*"]
)
def test_what_no_store_could_keep_is_refused_before_it_gets_there(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Attribution().merged({name: value})


def test_nothing_is_no_name() -> None:
    assert Attribution("acme").merged({"tenant": "", "user": None}) == Attribution("acme")
    with pytest.raises(ValueError, match="leave it out"):
        checked_identifier("tenant", "")


def acceptable(text: str) -> bool:
    try:
        checked_identifier("name", text)
    except ValueError:
        return False
    return True


names = (st.text(min_size=1, max_size=40) | st.text("|,=%/ 7C2", min_size=1, max_size=8)).filter(
    acceptable
)
shapes = st.dictionaries(
    st.sampled_from(["tenant", "user", "session", "feature", "model"]), names, max_size=5
)
moments = st.integers(-(10**9), 10**9).map(lambda seconds: NOW + dt.timedelta(seconds=seconds))


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    window = draw(st.sampled_from(list(Window)))
    highest = {Window.WEEK: 7, Window.MONTH: 31}.get(window, 1)
    seconds = draw(st.integers(60, 366 * 86_400)) if window is Window.ROLLING else 0
    shape: dict[str, Any] = draw(shapes)
    return budget(
        draw(st.sampled_from([unit.value for unit in Unit])),
        now=draw(moments),
        since=draw(st.integers(0, 2**53)),
        window=window,
        rolling_seconds=seconds,
        anchor_day=draw(st.integers(1, highest)),
        time_zone=draw(st.sampled_from(["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])),
        **shape,
    )


@given(one=budgets(), other=budgets())
@settings(max_examples=100, deadline=None)
def test_a_key_says_which_budget_it_counts(one: Budget, other: Budget) -> None:
    read = budget_of(one.held_in, one.since)
    assert (read.key, read.values, read.window) == (one.key, one.values, one.window)
    assert (read.limit.unit, read.since) == (one.limit.unit, one.since)

    def counted(b: Budget) -> tuple[object, ...]:
        limit = b.limit
        edges: tuple[object, ...] = (limit.anchor_day, limit.time_zone)  # a rolling one: none
        edges = edges if b.slice is None else (limit.rolling_seconds,)
        return b.values, b.window, limit.unit, limit.window, edges

    assert (one.held_in == other.held_in) == (counted(one) == counted(other))
