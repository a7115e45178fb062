"""The supplied executor: threads that are charged like whoever gives them work (case C80)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from token_allowance import allowance
from token_allowance.attribution import NOBODY, current


def who(text: str = "", *, end: str = "") -> str:
    charge = current()
    return "/".join((text, *charge.attribution().as_dict().values(), charge.trace_id, end))


def test_each_piece_of_work_is_charged_like_the_code_that_gave_it():
    with allowance.executor(max_workers=1) as threads:
        with allowance.charge_to(tenant="7", user="42", trace_id="t"):
            first = threads.submit(who, "a", end="z")
            mapped = threads.map(who, "bc")
        with allowance.charge_to(user="43"):
            second = threads.submit(who)
        nobodys = threads.submit(current)
        assert first.result() == "a/7/42///t/z"
        assert list(mapped) == ["b/7/42///t/", "c/7/42///t/"]
        assert second.result() == "//43////"
        assert nobodys.result() is NOBODY


def test_what_a_thread_changes_stays_in_its_piece_of_work():
    with allowance.charge_to(user="42"), allowance.executor(1) as threads:
        threads.submit(allowance.charge_to(user="43").__enter__).result()
        assert threads.submit(who).result() == who() == "//42////"


def test_work_that_fails_fails_as_in_any_executor():
    with allowance.executor(1) as threads, pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result()
    assert isinstance(threads, ThreadPoolExecutor)


def test_pythons_own_executor_leaves_the_charge_behind():
    with allowance.charge_to(user="42"), ThreadPoolExecutor(1) as threads:
        assert threads.submit(current).result() is NOBODY
