"""Samples of a duration, and tables of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median, quantiles


def milliseconds(seconds: Sequence[float]) -> str:
    return f"{1000 * median(seconds):.2f}"


def worst_milliseconds(seconds: Sequence[float]) -> str:
    """The time that one in twenty exceeds."""
    return f"{1000 * quantiles(seconds, n=20)[-1]:.2f}"


def progress(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    left = sum(not any(c.isdigit() for row in rows for c in row[i]) for i in range(len(header)))
    sys.stdout.write(f"\n{title}\n\n")
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if i < max(left, 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write(f"  {'  '.join(cells).rstrip()}\n")
    sys.stdout.flush()
