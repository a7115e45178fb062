"""The public door keeps its promise (DESIGN.md section 3)."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from token_allowance import allowance, exceptions

PROMISED = """
meter charge_to call admit require remaining engage disengage adjust problem find_refusal
settle_deferred aadjust
aadmit aremaining aengage adisengage asettle_deferred Usage
AllowanceError AllowanceExceeded CapExceeded TooLarge SwitchEngaged StoreUnavailable UnknownModel
Unattributed ReservationError
"""
ERRORS = [
    kind
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, exceptions.AllowanceError)
]


def test_everything_promised_is_exported() -> None:
    assert set(PROMISED.split()) <= set(allowance.__all__)


def test_all_is_sorted_and_real() -> None:
    assert allowance.__all__ == sorted(allowance.__all__)
    assert all(hasattr(allowance, name) for name in allowance.__all__)


def test_the_door_opens_before_django_setup_and_needs_no_sdk() -> None:
    code = (
        "import sys; from token_allowance import allowance; from django.apps import apps; "
        "assert not apps.ready; "
        "print(sorted({'openai','anthropic','redis','celery','httpx','httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_pickle_and_a_message_alone(
    kind: type[exceptions.AllowanceError],
) -> None:
    error = kind("no room", trace_id="t1", reason="held")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.__dict__) == (str(error), error.__dict__)
    assert str(kind("no room")) == "no room"  # all that Celery's JSON keeps


def test_statuses() -> None:
    expected = {
        "AllowanceExceeded": 429, "CapExceeded": 429, "TooLarge": 422, "SwitchEngaged": 503,
        "StoreUnavailable": 503, "UnknownModel": 422, "Unattributed": 500,
    }  # fmt: skip
    assert {name: getattr(allowance, name).status for name in expected} == expected
