"""Settings of a worker that may post to the tests' own receivers."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import TOKEN_ALLOWANCE

TOKEN_ALLOWANCE = {**TOKEN_ALLOWANCE, "WEBHOOK_ALLOWED": ["127.0.0.0/8"]}
