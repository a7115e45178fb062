from __future__ import annotations

import datetime as dt
import json
import pickle

import anthropic
import httpx
import httpx2
import openai
import pytest
from django.test import override_settings

from tests.urls_http import MIDNIGHT, SPENT, spent
from token_allowance.attribution import Charge, entered
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    CapExceeded,
    SwitchEngaged,
    TooLarge,
    Unattributed,
    UnknownModel,
)
from token_allowance.exceptions import StoreUnavailable as Down
from token_allowance.problems import find_refusal, headers, problem
from token_allowance.runs import Run

KEYS = (
    "type title status code detail scope window unit limit available needed resets_at retryable "
    "trace_id"
)
REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")


def wrapped(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__context__ = inner
    return outer


def test_the_seed_story_as_a_document():
    assert problem(spent(trace_id="r1")) == {
        "type": "urn:token-allowance:problem:user_daily_budget_exceeded",
        "title": "Token budget exceeded",
        "status": 429,
        "code": "user_daily_budget_exceeded",
        "detail": "user daily budget exceeded: $0.40 of $0.50 is used",
        "scope": "user",
        "window": "day",
        "unit": "cost",
        "limit": "0.50",
        "available": "0.02",
        "needed": "0.08",
        "resets_at": "2126-11-30T00:00:00Z",
        "retryable": False,
        "trace_id": "r1",
    }
    assert headers(spent()) == {
        "Retry-After": "41520",
        "x-should-retry": "false",
        "Cache-Control": "no-store",
    }


@pytest.mark.parametrize(
    ("amount", "text"),
    [(500_000, "0.50"), (1_234_567_000_000, "1234567.00"), (1, "0.000001"), (-20_000, "-0.02")],
)
def test_cost_is_dollars_as_text(amount, text):
    assert problem(spent(amount=amount))["limit"] == text


@pytest.mark.parametrize("unit", ["tokens", "calls"])
def test_tokens_and_calls_are_integers(unit):
    found = problem(spent(unit=unit, amount=2_000, available=-5, needed=7))
    assert (found["limit"], found["available"], found["needed"]) == (2_000, -5, 7)


def test_a_budget_wider_than_the_caller_shows_no_amounts():
    found = problem(spent(shared=True, scope="global", limit="acme only"))
    assert found["detail"] == "global daily budget exceeded"
    assert found["limit"] is found["available"] is found["needed"] is None
    assert "0.40" not in json.dumps(found)
    assert "acme" not in json.dumps(found)
    assert found["resets_at"] == "2126-11-30T00:00:00Z"


def test_a_switch_says_neither_why_nor_for_whom():
    error = SwitchEngaged(
        "feature agent of acme stopped by ops: leak",
        scope="feature:agent",
        reason="leak",
        ends_at=MIDNIGHT,
    )
    found = problem(error)
    assert (found["status"], found["code"], found["scope"]) == (503, "switch_engaged", None)
    assert found["detail"] == "Paused by the service"
    assert "leak" not in json.dumps(found)
    assert int(headers(error)["Retry-After"]) > 1


def test_a_driver_error_stays_inside():
    found = problem(Down("could not connect to server at db.internal"))
    assert found["detail"] == "Budgets cannot be checked right now"
    assert headers(Down())["Retry-After"] == "5"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AllowanceExceeded(), 402),
        (CapExceeded(), 402),
        (TooLarge(), 422),
        (UnknownModel(), 422),
        (SwitchEngaged(), 503),
    ],
)
@override_settings(TOKEN_ALLOWANCE={"EXCEEDED_STATUS": 402})
def test_the_status_of_an_exceeded_budget_can_be_402(error, status):
    assert problem(error)["status"] == status


@pytest.mark.parametrize(("seconds", "header"), [(0, "1"), (-3, "1"), (1, "1"), (1.2, "2")])
def test_retry_after_is_a_whole_number_of_at_least_one(seconds, header):
    assert headers(spent(retry_after_seconds=seconds))["Retry-After"] == header


@pytest.mark.parametrize("kind", [CapExceeded, TooLarge])
def test_no_retry_after_where_waiting_does_not_help(kind):
    assert "Retry-After" not in headers(kind(**SPENT))


def test_retry_after_follows_from_the_reset_when_nothing_else_is_known():
    error = spent(retry_after_seconds=None)
    error.resets_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=90)
    assert headers(error)["Retry-After"] in ("89", "90")


def test_a_cap_of_a_run_is_the_callers_own():
    run = Run(max_calls=5)
    for _ in range(5):
        run.take(0)
    with pytest.raises(CapExceeded) as refusal:
        run.take(0)
    found = problem(refusal.value)
    assert found["code"] == "per_request_calls_exceeded"
    assert (found["scope"], found["limit"], found["available"], found["needed"]) == (
        "request",
        5,
        0,
        1,
    )


@pytest.mark.parametrize(
    "error",
    [
        spent(),
        AllowanceExceeded(),
        AllowanceError("bare"),
        spent(limit=object(), amount=object(), unit=object(), scope="a\nb", resets_at="soon"),
        spent(resets_at=dt.datetime(2126, 11, 30)),  # noqa: DTZ001
        Unattributed("limits look at the user"),
        Down(),
        pickle.loads(pickle.dumps(spent())),
    ],
)
def test_every_document_is_json_with_the_same_keys(error):
    assert " ".join(json.loads(json.dumps(problem(error), allow_nan=False))) == KEYS


def test_a_refusal_without_words_of_its_own_still_names_scope_and_window():
    error = AllowanceExceeded(scope="user", window="day")
    assert problem(error)["detail"] == "user daily budget exceeded"


def test_the_trace_id_is_the_requests():
    with entered(Charge(trace_id="t7")):
        assert problem(Down())["trace_id"] == "t7"
        assert problem(spent(trace_id="t8"))["trace_id"] == "t8"


def test_what_is_no_refusal_has_no_document():
    with pytest.raises(TypeError, match="KeyError is no refusal"):
        problem(KeyError("x"))


def test_a_wrapped_refusal_has_a_document_too():
    error = wrapped(openai.APIConnectionError(request=REQUEST), spent())
    assert problem(error)["code"] == "user_daily_budget_exceeded"


def langchain_error():
    return type("OutputError", (Exception,), {"__module__": "langchain_openai.chat"})()


@pytest.mark.parametrize(
    "outer",
    [
        openai.APIConnectionError(request=REQUEST),
        anthropic.APIConnectionError(request=REQUEST),
        httpx.ConnectError("x"),
        httpx2.ConnectError("x"),
        langchain_error(),
    ],
    ids=lambda e: type(e).__module__,
)
def test_the_context_of_an_sdk_error_is_followed(outer):
    refusal = spent()
    assert find_refusal(wrapped(outer, refusal)) is refusal


def test_an_sdk_that_wraps_twice():
    refusal = spent()
    middle = httpx2.ConnectError("x")
    middle.__cause__ = refusal
    outer = anthropic.APIConnectionError(request=REQUEST)
    outer.__cause__ = middle
    assert find_refusal(outer) is refusal


@pytest.mark.parametrize("module", ["agents.views", "project.views", "openai_tools", "google.x"])
def test_a_bug_in_the_callers_except_block_stays_a_bug(module):
    bug = type("OwnError", (Exception,), {"__module__": module})()
    assert find_refusal(wrapped(bug, spent())) is None
    assert find_refusal(wrapped(KeyError("answer"), spent())) is None


def test_an_explicit_cause_is_followed_from_any_exception():
    refusal = spent()
    outer = RuntimeError("chat failed")
    outer.__cause__ = refusal
    assert find_refusal(outer) is refusal


def test_groups_are_searched_to_any_depth():
    refusal = spent()
    inner = wrapped(openai.APIConnectionError(request=REQUEST), refusal)
    group = ExceptionGroup("a", [ValueError(), ExceptionGroup("b", [KeyError(), inner])])
    assert find_refusal(group) is refusal
    assert find_refusal(ExceptionGroup("a", [ValueError(), KeyError()])) is None
    assert find_refusal(BaseExceptionGroup("a", [KeyboardInterrupt(), refusal])) is refusal


def test_a_ring_of_exceptions_ends():
    one, two = RuntimeError("1"), RuntimeError("2")
    one.__cause__, two.__cause__ = two, one
    assert find_refusal(one) is None


def test_an_endless_chain_is_cut():
    last: BaseException = spent()
    for _ in range(1_000):
        outer = RuntimeError()
        outer.__cause__ = last
        last = outer
    assert find_refusal(last) is None
