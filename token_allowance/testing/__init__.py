"""For the tests of a host project: a store in memory, prices, and budgets spent without a call.

The pytest fixture is in ``token_allowance.testing.pytest``.
"""

from __future__ import annotations

from token_allowance.testing.prices import price
from token_allowance.testing.spending import aspend, spend
from token_allowance.testing.stores import memory_store

__all__ = ["aspend", "memory_store", "price", "spend"]
