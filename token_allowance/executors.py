"""Threads that are charged like the code that gives them work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class executor(ThreadPoolExecutor):
    """A ThreadPoolExecutor whose ``submit`` and ``map`` take the caller's charge along (case C80).

    Python's own leaves context variables behind: a model call there is nobody's. Each piece of
    work sees the charge, caps and trace id that were current when it was submitted, also in a
    thread that has worked for somebody else before.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        context = copy_context()
        return super().submit(lambda: context.run(fn, *args, **kwargs))
