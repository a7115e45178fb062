from __future__ import annotations

import pytest

from tests.capability import lacking


def test_what_is_lacking_is_a_skip_with_its_reason_on_a_developers_machine(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser"):
        lacking("no browser")


def test_what_is_lacking_is_a_failure_under_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        lacking("no browser")
