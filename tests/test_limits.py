"""Which limits apply (DESIGN.md section 3), and how their budgets are named."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.counters import budget_of
from token_allowance.limits import (
    Attribution,
    Limit,
    Unit,
    apply,
    checked_identifier,
    counter_key,
    open_budget,
)
from token_allowance.windows import Window

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)
ANA = Attribution(tenant="acme", user="ana", session="s1", feature="chat")


def applying(
    limits: list[Limit], who: Attribution = ANA, model: str = "gpt", plan: str = ""
) -> list[Limit]:
    budgets, _ = apply(limits, who, model=model, plan=plan, now=NOW)
    return [budget.limit for budget in budgets if budget.enforced]


def missing(limits: list[Limit], who: Attribution) -> frozenset[str]:
    return apply(limits, who, model="gpt", plan="", now=NOW)[1]


@pytest.mark.parametrize(
    ("rule", "applies"),
    [
        ({}, True),
        ({"tenant": "*"}, True),
        ({"tenant": "acme"}, True),
        ({"tenant": "globex"}, False),
        ({"tenant": "*", "user": "ana"}, True),
        ({"tenant": "*", "user": "bob"}, False),
        ({"feature": "chat", "model": "gpt"}, True),
        ({"feature": "chat", "model": "claude"}, False),
        ({"session": "*", "model": "*"}, True),
    ],
)
def test_a_limit_matches_when_every_dimension_is_each_or_equal(
    rule: dict[str, Any], applies: bool
) -> None:
    assert bool(applying([Limit(**rule)])) is applies


def test_all_matching_limits_apply_at_once() -> None:
    rules = [Limit(), Limit(tenant="*"), Limit(tenant="*", user="*"), Limit(feature="chat")]
    assert len(applying(rules)) == 4


def test_a_limit_for_one_value_replaces_the_one_for_each() -> None:
    each, own = Limit(tenant="*", amount=10), Limit(tenant="acme", amount=99)
    assert applying([each, own]) == [own]
    assert applying([each, own], Attribution(tenant="globex")) == [each]


@pytest.mark.parametrize("other", [{"window": Window.MONTH}, {"unit": Unit.TOKENS}, {"user": "*"}])
def test_another_window_unit_or_shape_is_not_replaced(other: dict[str, Any]) -> None:
    own, each = Limit(tenant="acme"), Limit(**({"tenant": "*"} | other))
    assert len(applying([own, each])) == 2


def test_a_plan_filters_and_is_replaced_by_the_tenant_s_own_limit() -> None:
    each = Limit(tenant="*", amount=1)
    pro = Limit(tenant="*", plan="pro", amount=2)
    own = Limit(tenant="acme", amount=3)
    assert applying([each, pro], plan="") == [each]
    assert applying([each, pro], plan="pro") == [pro]
    assert applying([each, pro, own], plan="pro") == [own]


def test_a_plan_alone_does_not_replace_another_dimension_s_value() -> None:
    pro = Limit(tenant="*", user="*", plan="pro", amount=9)
    ana = Limit(tenant="*", user="ana", amount=5)
    found = apply([pro, ana], ANA, model="gpt", plan="pro", now=NOW)[0]
    assert [budget.limit for budget in found] == [ana]  # one counter: the stricter of the two


def test_two_limits_that_share_a_counter_count_once_and_the_stricter_refuses() -> None:
    by_tenant = Limit(tenant="acme", user="*", amount=50, tracked_since=7)
    by_user = Limit(tenant="*", user="ana", amount=20, tracked_since=3)
    (budget,) = apply([by_tenant, by_user], ANA, model="gpt", plan="", now=NOW)[0]
    assert budget.limit == by_user
    assert budget.since == 3


def test_an_overridden_limit_with_other_edges_is_counted_but_never_refuses() -> None:
    each = Limit(tenant="*", amount=1, time_zone="UTC")
    own = Limit(tenant="acme", amount=100, time_zone="Asia/Shanghai")
    budgets, _ = apply([each, own], ANA, model="gpt", plan="", now=NOW)
    assert {(b.limit.amount, b.enforced) for b in budgets} == {(1, False), (100, True)}


def test_an_expired_limit_does_not_apply() -> None:
    assert applying([Limit(expires_at=NOW)]) == []
    assert len(applying([Limit(expires_at=NOW + dt.timedelta(seconds=1))])) == 1


def test_what_a_limit_looks_at_and_the_call_lacks_is_named() -> None:
    nobody = Attribution(tenant="acme")
    assert missing([Limit(tenant="*", user="*")], nobody) == {"user"}
    assert missing([Limit(tenant="globex", user="*")], nobody) == frozenset()
    assert missing([Limit(session="s1"), Limit(user="bob")], Attribution()) == {"session", "user"}


def test_budgets_come_in_lock_order_narrow_first_and_the_global_one_last() -> None:
    rules = [Limit(), Limit(tenant="*"), Limit(tenant="*", user="*"), Limit(feature="*")]
    budgets, _ = apply(rules, ANA, model="gpt", plan="", now=NOW)
    assert [budget.limit.scope for budget in budgets] == ["user", "feature", "tenant", "global"]
    assert [b.key for b in budgets] == sorted(b.key.encode().decode() for b in budgets)


@pytest.mark.parametrize(
    ("rule", "scope"),
    [
        ({}, "global"),
        ({"tenant": "*", "user": "*"}, "user"),
        ({"tenant": "acme"}, "tenant"),
        ({"tenant": "*", "feature": "*"}, "tenant feature"),
        ({"feature": "agent", "model": "*"}, "feature model"),
        ({"session": "*"}, "session"),
    ],
)
def test_the_scope_word_names_whose_budget_it_is(rule: dict[str, Any], scope: str) -> None:
    assert Limit(**rule).scope == scope


def test_a_counter_key_has_no_trace_of_the_limit_s_id_or_amount() -> None:
    one, other = Limit(id=1, tenant="acme", amount=5), Limit(id=2, tenant="*", amount=9)
    values = {"tenant": "acme"}
    assert open_budget(one, values, NOW).key == open_budget(other, values, NOW).key


identifiers = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn")), min_size=1, max_size=30)


@given(
    identifiers.filter(str.isprintable).filter(lambda text: text != "*"), st.sampled_from(Window)
)
def test_a_counter_key_can_be_read_back(value: str, window: Window) -> None:
    seconds = 2_592_000 if window is Window.ROLLING else 0
    limit = Limit(
        tenant="*", feature="*", window=window, time_zone="Asia/Kathmandu", rolling_seconds=seconds
    )
    budget = open_budget(limit, {"tenant": value, "feature": "a,b=c|d%2C"}, NOW)
    for again in (budget_of(budget.key, now=NOW), budget_of(budget.held_in)):
        assert again.key == budget.key
        assert again.values == budget.values
        assert again.window == budget.window


@given(identifiers, identifiers)
def test_different_values_never_share_a_counter_key(one: str, other: str) -> None:
    keys = {
        counter_key(Limit(tenant="*", user="*"), (("tenant", a), ("user", b)), budget_window())
        for a, b in ((one, other), (other, one))
    }
    assert len(keys) == len({(one, other), (other, one)})


def budget_window() -> Any:
    return open_budget(Limit(), {}, NOW).window


@pytest.mark.parametrize("value", ["", "*", "a\x00b", "x" * 201, "line\nbreak", "\u202e\x07"])
def test_an_identifier_that_no_store_could_keep_apart_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="tenant"):
        checked_identifier("tenant", value)


def test_attribution_is_merged_value_by_value() -> None:
    merged = ANA.merged({"user": 42, "feature": None, "session": ""})
    assert merged == Attribution(tenant="acme", user="42", session="s1", feature="chat")
