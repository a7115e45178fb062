"""What `token_allowance.testing` gives a host project: run as the host's own tests are run."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from decimal import Decimal

import pytest
from django.test import override_settings

from tests.racers import ROOT
from token_allowance import conf
from token_allowance.models import Limit
from token_allowance.stores.memory import MemoryStore
from token_allowance.testing import memory_store, price, spend

CASES = "tests/host/cases.py"
RUNNERS = {
    "manage": [
        "-m",
        "django",
        "test",
        "tests.host.cases",
        "--pythonpath",
        str(ROOT),
        "--parallel=2",
    ],
    "pytest": [
        *("-m", "pytest", CASES, "-q", "-n", "2", "-c", os.devnull, "--rootdir", "tests/host"),
        *("--noconftest", "-p", "token_allowance.testing.pytest", "-p", "no:cacheprovider"),
        *("-p", "no:asyncio", "--ds", "tests.host.settings"),
    ],
}
RUN_SECONDS = 60


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("runner", list(RUNNERS))
def test_each_kind_of_test_sees_what_the_readme_says(runner, database):
    name = database if database == "sqlite" else f"test_host_{uuid.uuid4().hex[:12]}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *RUNNERS[runner]],
        cwd=ROOT,
        env={
            **environment,
            "DJANGO_SETTINGS_MODULE": "tests.host.settings",
            "HOST_DATABASE": name,
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    skipped = int(database == "sqlite")
    if runner == "pytest":
        assert f"{17 - skipped} passed" in said, said
    else:
        assert "Ran 15 tests" in said, said
    assert ("skipped" in said) == bool(skipped), said


def test_the_helpers_do_not_need_pytest():
    code = (
        "import sys; sys.modules['pytest'] = None; "
        "from token_allowance.testing import aspend, memory_store, spend"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=RUN_SECONDS)


def test_a_memory_store_outlives_a_change_of_other_settings():
    before = conf.store()
    with memory_store(MODE="observe") as store:
        assert isinstance(store, MemoryStore)
        with override_settings(TIME_ZONE="Europe/Berlin"):
            assert conf.store() is store
        with override_settings(TOKEN_ALLOWANCE={}):
            assert conf.store() is not store
        assert (conf.store(), conf.current().MODE) == (store, "observe")
    assert type(conf.store()) is type(before)
    assert conf.current().MODE == "enforce"


def test_one_memory_store_may_be_entered_in_another():
    with memory_store() as outer:
        with memory_store() as inner:
            assert conf.store() is inner
        assert conf.store() is outer


@memory_store()
def test_a_function_may_be_decorated():
    assert isinstance(conf.store(), MemoryStore)


@pytest.mark.asyncio
@memory_store()
async def test_a_coroutine_function_may_be_decorated():
    assert isinstance(conf.store(), MemoryStore)


@pytest.mark.django_db
@pytest.mark.parametrize("unit", ["cost", "tokens", "calls"])
def test_spending_what_no_limit_counts_is_an_error(unit):
    with memory_store():
        Limit.objects.create(tenant="*", user="*", unit=unit, amount=1_000_000)
        with pytest.raises(ValueError, match=f"no active limit in {unit} .*tenant='acme'"):
            spend(1, unit=unit, tenant="acme")
        spend(1, unit=unit, tenant="acme", user="u_1")
        with pytest.raises(ValueError, match="Create the Limit first"):
            spend(1, unit="calls" if unit != "calls" else "cost", tenant="acme", user="u_1")


@pytest.mark.django_db
def test_a_price_is_written_in_dollars_per_million_tokens():
    written = price("m", input="0.25", output=2)
    assert (written.provider, written.input_mtok) == ("openai", Decimal("0.25"))
    with pytest.raises(TypeError, match="not a float"):
        price("m", input=0.25, output=2)
