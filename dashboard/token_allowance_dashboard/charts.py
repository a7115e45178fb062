"""Charts as values: marks to draw, a sentence that says the same, and the numbers as a table.

Drawn by the server as SVG, in a box of 1000 by 100 that stretches; words stay in HTML.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from token_allowance.money import format_usd

WIDTH, HEIGHT = 1000, 100
COLOURS = 6
OTHER = 7  # the colour of what is not shown by itself
GAP = 0.15  # of a bar's room


@dataclass(frozen=True, slots=True)
class Mark:
    x: float
    y: float
    width: float
    height: float
    colour: int
    pale: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend."""

    name: str
    colour: int
    total: str


@dataclass(frozen=True, slots=True)
class Line:
    points: str  # of an SVG polyline
    colour: int
    forecast: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A level line, with its words."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template ``chart.html`` draws. ``rows`` are the numbers, with ``heads`` above."""

    id: str
    title: str
    description: str
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()
    rules: tuple[Rule, ...] = ()
    legend: tuple[Key, ...] = ()
    labels: tuple[str, ...] = ()  # along the axis, from left to right
    top: str = ""  # what the upper edge stands for
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def colour(name: str) -> int:
    """Always the same of a name, 1 to 6, wherever it is drawn."""
    return zlib.crc32(name.encode()) % COLOURS + 1


def colours(names: Sequence[str]) -> dict[str, int]:
    """A colour for each, by its name, and another where two on one chart would share it."""
    found: dict[str, int] = {}
    for name in names:
        wanted = colour(name)
        free = [c for n in range(COLOURS) if (c := (wanted - 1 + n) % COLOURS + 1)
                not in found.values()]  # fmt: skip
        found[name] = free[0] if free else OTHER
    return found


def stacked(
    id: str,
    title: str,
    labels: Sequence[str],
    series: Sequence[tuple[str, Sequence[int]]],
    *,
    last_is_open: bool = False,
) -> Chart:
    """Bars of micro-dollars, one for each label, stacked by series; the last may be unfinished."""
    totals = [sum(values[n] for _, values in series) for n in range(len(labels))]
    highest = max(totals, default=0)
    chosen = colours([name for name, _ in series if name != "other"])
    marks: list[Mark] = []
    each = WIDTH / max(1, len(labels))
    for place in range(len(labels)):
        foot = float(HEIGHT)
        for name, values in series:
            height = HEIGHT * values[place] / highest if highest else 0.0
            if height:
                foot -= height
                pale = last_is_open and place == len(labels) - 1
                x, width = each * (place + GAP / 2), each * (1 - GAP)
                marks.append(Mark(x, foot, width, height, chosen.get(name, OTHER), pale))
    return Chart(
        id,
        title,
        _bars_in_words(title, labels, totals, series),
        marks=tuple(marks),
        legend=tuple(
            Key(name, chosen.get(name, OTHER), format_usd(sum(values))) for name, values in series
        ),
        labels=_axis(labels),
        top=format_usd(highest),
        heads=("", *(name for name, _ in series), "total"),
        rows=tuple(
            (label, *(format_usd(values[n]) for _, values in series), format_usd(totals[n]))
            for n, label in enumerate(labels)
        ),
    )


def curve(
    id: str,
    title: str,
    labels: Sequence[str],
    values: Sequence[int],
    *,
    forecast: Sequence[int] = (),
    levels: Iterable[tuple[int, str]] = (),
) -> Chart:
    """A line of micro-dollars over labels, going on as a forecast, with levels across it.

    ``labels`` are as many as values and forecast together.
    """
    levels = list(levels)
    highest = max([*values, *forecast, *(level for level, _ in levels)], default=0)
    number = max(2, len(values) + len(forecast))

    def points(shown: Sequence[int], first: int) -> str:
        return " ".join(
            f"{WIDTH * (first + n) / (number - 1):.1f},"
            f"{HEIGHT - (HEIGHT * value / highest if highest else 0):.2f}"
            for n, value in enumerate(shown)
        )

    lines = [Line(points(values, 0), 1)]
    if forecast and values:
        lines.append(Line(points([values[-1], *forecast], len(values) - 1), 1, forecast=True))
    said = [f"{title}: {format_usd(values[-1])} so far."] if values else [f"{title}: nothing yet."]
    if forecast:
        said.append(f"At this pace {format_usd(forecast[-1])} by {labels[-1]}.")
    said += [f"{text} is at {format_usd(level)}." for level, text in levels]
    rows = [(label, format_usd(v), "") for label, v in zip(labels, values, strict=False)]
    rows += [
        (label, format_usd(v), "forecast")
        for label, v in zip(labels[len(values) :], forecast, strict=False)
    ]
    at = [(HEIGHT - (HEIGHT * level / highest if highest else 0), level, t) for level, t in levels]
    return Chart(
        id,
        title,
        " ".join(said),
        lines=tuple(lines),
        rules=tuple(Rule(y, f"{text} {format_usd(level)}") for y, level, text in at),
        labels=_axis(labels),
        top=format_usd(highest),
        heads=("", "dollars", ""),
        rows=tuple(rows),
    )


def spark(values: Sequence[int]) -> str:
    """The points of a small line without words; what it shows is said beside it."""
    highest = max(values, default=0) or 1
    each = WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{each * n:.0f},{HEIGHT - HEIGHT * value / highest:.0f}" for n, value in enumerate(values)
    )


def _axis(labels: Sequence[str]) -> tuple[str, ...]:
    """The first, the last and a few between them: more would not fit on a telephone."""
    if len(labels) <= 4:
        return tuple(labels)
    return tuple(labels[(len(labels) - 1) * n // 3] for n in range(4))


def _bars_in_words(
    title: str,
    labels: Sequence[str],
    totals: Sequence[int],
    series: Sequence[tuple[str, Sequence[int]]],
) -> str:
    if not any(totals):
        return f"{title}: nothing."
    most = max(range(len(totals)), key=totals.__getitem__)
    said = [
        f"{title}: {format_usd(sum(totals))} in all, most in {labels[most]} "
        f"with {format_usd(totals[most])}."
    ]
    if len(series) > 1:
        name, values = max(series, key=lambda one: sum(one[1]))
        said.append(f"The largest part is {name} with {format_usd(sum(values))}.")
    return " ".join(said)
