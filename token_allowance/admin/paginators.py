"""Paging through a table too large to count."""

from __future__ import annotations

from typing import Any

from django.utils.functional import cached_property

from token_allowance.admin.generics import AnyPaginator

MOST = 1_000


class CappedPaginator(AnyPaginator):
    """Pages over the first thousand rows only, so that no page counts the whole table."""

    @cached_property
    def found(self) -> int:
        """Rows seen, at most one more than are shown."""
        rows: Any = self.object_list
        return len(rows.values_list("pk")[: MOST + 1])

    @cached_property
    def count(self) -> int:
        return min(self.found, MOST)

    @property
    def capped(self) -> bool:
        return self.found > MOST
