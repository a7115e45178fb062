"""How far the estimates of a model have been from what was reported, as one factor."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

ENOUGH_ROWS: Final = 200  # to lower an estimate
FEW_ROWS: Final = 20  # to raise one
_LEAST, _MOST = Decimal("0.5"), Decimal(3)
_PER_CENT: Final = 95
_STEP: Final = Decimal("0.01")


def factor(pairs: Sequence[tuple[int, int]]) -> Decimal:
    """From (estimated, reported) tokens: 95 in 100 calls would not have exceeded their estimate.

    Between 0.5 and 3, in hundredths; never below 1 with fewer than 200 calls, and 1 below 20.
    """
    ratios = sorted(Decimal(reported) / estimated for estimated, reported in pairs if estimated > 0)
    if len(ratios) < FEW_ROWS:
        return Decimal(1)
    found = ratios[-(-len(ratios) * _PER_CENT // 100) - 1].quantize(_STEP, ROUND_CEILING)
    least = _LEAST if len(ratios) >= ENOUGH_ROWS else Decimal(1)
    return min(_MOST, max(least, found))
