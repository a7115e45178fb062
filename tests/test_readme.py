"""The README's code runs as it stands there, in order, as one reader would type it."""

from __future__ import annotations

import re
import subprocess
import time
import unittest
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import include, path

from project.provider import FIXED_COST, Provider
from token_allowance import allowance, conf
from token_allowance.channels import signatures
from token_allowance.models import DegradeRule, Limit, Price, Reservation
from token_allowance.models.channels import new_secret

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.M | re.S)
*PYTHON, REDIS_BLOCK = [code for language, code in BLOCKS if language == "python"]
SETTINGS_BLOCK, BILLING_BLOCK = PYTHON[1], PYTHON[2]


@pytest.mark.django_db(transaction=True)
def test_the_code_blocks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Price.objects.create(
        provider="openai", model="gpt-5-mini", input_mtok=Decimal("0.25"), output_mtok=Decimal(2)
    )
    namespace: dict[str, Any] = {"urlpatterns": [], "path": path, "include": include}
    with Provider() as provider:
        provider.script([], default=FIXED_COST)
        monkeypatch.setenv("OPENAI_API_KEY", "none needed")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.openai_url)
        for code in [PYTHON[0], *PYTHON[3:]]:
            exec(compile(code, "README.md", "exec"), namespace)
        assert len(provider.log()) == 2
    namespace["client"].close()
    (mounted,) = namespace["urlpatterns"]
    assert mounted.resolve("allowance/now/").view_name == "token_allowance_dashboard:now"
    assert Limit.objects.count() == 3
    assert Limit.objects.get(feature="agent").degrade_at == 80
    assert DegradeRule.objects.count() == 2
    charged = Reservation.objects.filter(state="settled").order_by("id")
    assert [row.feature for row in charged] == ["support-chat", "digest", ""]
    assert charged[2].cost_micros == 719  # as the comment beside call.record says


def test_the_example_of_a_receiver_knows_our_signature() -> None:
    (example,) = (code for code in PYTHON if "def is_genuine" in code)
    namespace: dict[str, Any] = {}
    exec(example, namespace)
    secret, body, now = new_secret(), b'{"id": "e1"}', int(time.time())
    is_genuine = namespace["is_genuine"]
    assert is_genuine(signatures.headers(secret, "e1", now, body), body, secret)
    assert not is_genuine(signatures.headers(secret, "e1", now, body), body + b" ", secret)
    assert not is_genuine(signatures.headers(secret, "e1", now, body), body, new_secret())
    assert not is_genuine(signatures.headers(secret, "e1", now - 301, body), body, secret)


def test_the_settings_block_is_valid() -> None:
    settings: dict[str, Any] = {"INSTALLED_APPS": [], "MIDDLEWARE": []}
    exec(SETTINGS_BLOCK, settings)
    assert conf.problems(settings["TOKEN_ALLOWANCE"]) == []
    for app in settings["INSTALLED_APPS"]:
        __import__(app)
    assert settings["MIDDLEWARE"][-1].startswith("token_allowance.middleware.")


def test_the_settings_block_for_redis_is_valid() -> None:
    settings: dict[str, Any] = {}
    exec(REDIS_BLOCK, settings)
    chosen = settings["TOKEN_ALLOWANCE"]
    assert conf.problems(chosen) == []
    store = conf.imported(chosen["STORE"]["BACKEND"])(**chosen["STORE"]["OPTIONS"])
    assert store.shared


def test_the_attribution_example_names_who_pays() -> None:
    billing = ModuleType("billing")
    exec(BILLING_BLOCK, billing.__dict__)
    ana = SimpleNamespace(is_authenticated=True, email="ana@acme.example", pk=7)
    assert billing.who_pays(SimpleNamespace(user=ana)) == {"tenant": "acme.example", "user": 7}
    assert billing.who_pays(SimpleNamespace(user=SimpleNamespace(is_authenticated=False))) == {
        "tenant": "anonymous",
        "user": "anonymous",
    }
    nameless = SimpleNamespace(is_authenticated=True, email="", pk=8)
    assert all(billing.who_pays(SimpleNamespace(user=nameless)).values())


@pytest.mark.django_db(transaction=True)
def test_the_example_of_a_test_passes(settings: Any) -> None:
    billing, urls = ModuleType("billing"), ModuleType("urls")
    exec(BILLING_BLOCK, billing.__dict__)

    def agent(request: HttpRequest) -> HttpResponse:
        with allowance.call(
            provider="openai", model="gpt-5-mini", input_tokens=10, max_output_tokens=10
        ):
            raise AssertionError("the budget is spent")

    urls.__dict__["urlpatterns"] = [path("agent", agent)]
    settings.ROOT_URLCONF = urls
    settings.TOKEN_ALLOWANCE = {"ATTRIBUTION": billing.__dict__["who_pays"]}
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "token_allowance.middleware.AllowanceMiddleware",
    ]
    (example,) = (code for code in PYTHON if "class AgentTests" in code)
    namespace: dict[str, Any] = {"__name__": "agent_tests"}
    exec(compile(example, "README.md", "exec"), namespace)
    load, result = unittest.defaultTestLoader.loadTestsFromTestCase, unittest.TestResult()
    cases = [load(namespace[name]) for name in ("AgentTests", "AgentTestsInMemory")]
    unittest.TestSuite(cases).run(result)
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])


def test_the_commands_exist() -> None:
    console = "".join(code for language, code in BLOCKS if language == "console")
    usage = subprocess.run(
        ["sh", "run", "help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for command in re.findall(r"\./run (\w+)", console):
        assert command in usage.stdout + usage.stderr
    known = (ROOT / "token_allowance/management/commands/allowance.py").read_text("utf-8")
    for command in re.findall(r"manage.py allowance ([\w-]+)", TEXT):
        assert command in known or command.replace("-", "_") in known


def test_every_setting_is_in_the_table() -> None:
    table = TEXT.partition("## Settings")[2]
    for name in conf.Settings.__dataclass_fields__:
        if name != "WAIT_SECONDS":
            assert f"`{name}`" in table, name
