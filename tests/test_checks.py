from __future__ import annotations

from typing import Any

import pytest
from django.core.checks.registry import registry
from django.db import connections
from django.test import override_settings

from token_allowance import checks
from token_allowance.stores.memory import MemoryStore

MEMORY = {"BACKEND": "token_allowance.stores.memory.MemoryStore"}


class HurriedStore(MemoryStore):
    can_wait = False


def ids(**settings: Any) -> list[str]:
    registered = registry.get_checks(include_deployment_checks=True)
    own = [check for check in registered if check.__module__ == checks.__name__]
    assert len(own) == 8
    with override_settings(**settings):
        return [m.id or "" for check in own for m in check(app_configs=None, databases=None)]


def test_the_demo_project_has_nothing_to_report() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"MOED": "enforce"}, "did you mean 'MODE'"),
        ({"MODE": "strict"}, "may be one of"),
        ({"ON_EXPIRE": "forget"}, "may be one of"),
        ({"EXCEEDED_STATUS": 418}, "may be one of"),
        ({"REQUEST_CAPS": {"max_call": 5}}, "did you mean 'max_calls'"),
        ({"REQUEST_CAPS": {"max_cost": "NaN"}}, "max_cost"),
        ({"RESERVATION_SECONDS": 0}, "above 0"),
        ({"WAIT_SECONDS": -1}, "0 or more"),
        ({"WAIT_SECONDS": "5"}, "0 or more"),
        ({"WAIT_SECONDS": True}, "0 or more"),
        ({"WAIT_SECONDS": float("nan")}, "0 or more"),
        ({"WAIT_SECONDS": float("inf")}, "0 or more"),
        ({"TIME_ZONE": "Berlin"}, "Europe/Berlin"),
        ({"UNKNOWN_MODEL": "fallback"}, "FALLBACK_PRICE"),
        ({"FALLBACK_PRICE": {"input_mtok": "5"}}, "no price"),
        ({"FALLBACK_PRICE": {"input_mtok": "5", "output_mtok": "x"}}, "no price"),
        ({"FALLBACK_PRICE": {"input_mtok": "5", "output_mtok": "0.1234567891"}}, "decimals"),
        ({"REQUEST_CAPS": {"max_calls": "many"}}, "whole number"),
        ({"STORE": "memory"}, "must be a dict"),
        ({"ESTIMATE": {"outptu_tokens": 1}}, "did you mean 'output_tokens'"),
        ({"ESTIMATE": {"output_tokens": "many"}}, "whole number"),
        ({"ESTIMATE": {"media_tokens": -1}}, "whole number"),
        ({"ESTIMATE": {"context_floor_tokens": 1.5}}, "whole number"),
        ({"ESTIMATE": {"safety": 0}}, "above 0"),
        ({"ESTIMATE": {"strict": "yes"}}, "True or False"),
        ({"ESTIMATE": {"calibrate": 1}}, "True or False"),
        ({"ESTIMATE": {"model_max_output_tokens": {"mine": "long"}}}, "whole numbers, or None"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_error(given: dict[str, Any], words: str) -> None:
    with override_settings(TOKEN_ALLOWANCE=given):
        (message,) = checks.check_settings()
    assert message.id == "allowance.E001"
    assert words in message.msg
    assert message.hint


def test_naive_time_is_an_error() -> None:
    assert "allowance.E002" in ids(USE_TZ=False)


def test_a_store_that_cannot_be_made_is_an_error() -> None:
    assert "allowance.E003" in ids(TOKEN_ALLOWANCE={"STORE": {"BACKEND": "no.such.Store"}})


def test_waiting_on_a_store_that_cannot_is_an_error() -> None:
    assert "allowance.E004" not in ids(TOKEN_ALLOWANCE={"WAIT_SECONDS": 5})
    store = {"BACKEND": "tests.test_checks.HurriedStore"}
    assert "allowance.E004" in ids(TOKEN_ALLOWANCE={"WAIT_SECONDS": 5, "STORE": store})


def test_a_missing_and_a_misplaced_middleware_are_warned_about() -> None:
    session = "django.contrib.sessions.middleware.SessionMiddleware"
    auth = "django.contrib.auth.middleware.AuthenticationMiddleware"
    messages = "django.contrib.messages.middleware.MessageMiddleware"
    assert "allowance.W001" in ids(MIDDLEWARE=[session, auth, messages])
    assert "allowance.W002" in ids(MIDDLEWARE=[checks.MIDDLEWARE, session, auth, messages])


def test_memory_in_production_is_warned_about() -> None:
    assert ids(TOKEN_ALLOWANCE={"STORE": MEMORY}) == ["allowance.W004"]


def test_a_database_that_the_store_cannot_use_is_warned_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = "django.db.backends.mysql"
    monkeypatch.setitem(connections.settings["default"], "ENGINE", engine)
    assert "allowance.W005" in ids()
