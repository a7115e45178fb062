"""What a machine may lack (a browser, Linux): a skip with its reason, and a failure under CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Ends the test: skipped on a developer's machine, failed where CI promises everything."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"CI must have it: {reason}", pytrace=False)
    pytest.skip(reason)
