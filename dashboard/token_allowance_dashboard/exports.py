"""Tables as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence

from django.http import StreamingHttpResponse

FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Echo:
    def write(self, line: str) -> str:
        return line


def safe(cell: object) -> object:
    """Text that a spreadsheet would run gets an apostrophe; numbers stay numbers (case C95)."""
    if isinstance(cell, str) and cell.startswith(FORMULA):
        return f"'{cell}"
    return cell


def table(
    name: str, heads: Sequence[str], rows: Iterable[Sequence[object]]
) -> StreamingHttpResponse:
    """A file to download. Numbers must come as numbers: what is text is guarded."""

    def lines() -> Iterator[str]:
        writer = csv.writer(_Echo())
        yield writer.writerow(heads)
        for row in rows:
            yield writer.writerow([safe(cell) for cell in row])

    return StreamingHttpResponse(
        lines(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )
