"""Levels of a limit: percent of its amount at which something happens. Integers only."""

from __future__ import annotations

from token_allowance.money import MAX_MICROS

NOTIFY_AT = (70, 90, 100)
DEGRADE_AT = 90
HARD_STOP = 100
MOST_PERCENT = 120


def are_levels(value: object) -> bool:
    """Is this a list of whole percentages at which a limit can tell?"""
    return isinstance(value, list | tuple) and all(
        isinstance(level, int) and not isinstance(level, bool) and 1 <= level <= MOST_PERCENT
        for level in value
    )


def part(amount: int, percent: int) -> int:
    """So much of the amount, rounded down; never above what a store can hold."""
    return min(MAX_MICROS, amount * percent // 100)


def reached_from(amount: int, percent: int) -> int:
    """The least that is used when this level is reached: ``used * 100 >= percent * amount``."""
    return -(-amount * percent // 100)
