"""Exporters: what the process has counted and measured, passed on to monitoring systems.

Named in TOKEN_ALLOWANCE["METRICS"]; each needs its own package, installed as an extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from token_allowance import conf, metrics


def connect(names: Iterable[str]) -> None:
    """Let these exporters follow the metrics; ConfigurationError says which package is missing."""
    for name in names:
        if name not in conf.EXPORTERS:
            continue  # a system check says so
        try:
            module = import_module(f"token_allowance.exporters.{name}")
        except ImportError as error:
            raise conf.ConfigurationError(
                f"TOKEN_ALLOWANCE['METRICS'] names {name!r}, and {error.name} is not installed: "
                f"pip install 'token-allowance[{name}]'"
            ) from None
        metrics.follow(module.exporter())
