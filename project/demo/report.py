"""The ledger and the verdicts as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.utils import timezone

from project.demo.figures import Line
from project.demo.promises import Verdict

HEADER = (
    "time",
    "tenant",
    "user",
    "feature",
    "model",
    "state",
    "reserved",
    "charged",
    "flags",
)
NUMBERS = {6, 7}  # columns set to the right


def ledger(lines: Iterable[Line]) -> str:
    """A table with one line for each row, in the order given."""
    return table(
        [
            HEADER,
            *(
                (
                    f"{timezone.localtime(line.created_at):%H:%M:%S}",
                    line.tenant,
                    line.user,
                    line.feature,
                    line.model,
                    line.state,
                    line.reserved,
                    line.charged,
                    line.flags,
                )
                for line in lines
            ),
        ]
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if position in NUMBERS else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def verdicts(found: Iterable[Verdict]) -> str:
    return "\n".join(
        f"{'PASS' if verdict.kept else 'FAIL'}  {verdict.promise} ({verdict.seen})"
        for verdict in found
    )
