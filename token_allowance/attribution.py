"""Who pays for the model calls made here: carried by a context variable, and capped per run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol, TypeVar

from asgiref.sync import iscoroutinefunction

from token_allowance import runs
from token_allowance.limits import Attribution, checked_identifier
from token_allowance.money import to_micros
from token_allowance.runs import Job, Run

F = TypeVar("F", bound=Callable[..., Any])
NAMES = ("tenant", "user", "session", "feature")


class Holder(Protocol):
    """A call that is under way: how much it holds in a budget, by the budget's key."""

    def holds(self, key: str) -> int: ...


class Source(Protocol):
    """Where an attribution that nobody stated comes from: a request."""

    def resolve(self) -> Attribution: ...

    async def aresolve(self) -> Attribution: ...


@dataclass(frozen=True, slots=True)
class Charge:
    """What the context variable holds: what was stated, where the rest comes from, the runs."""

    stated: tuple[tuple[str, str], ...] = ()
    source: Source | None = None
    runs: tuple[Run, ...] = ()
    trace_id: str = ""
    job: Job | None = None
    holders: tuple[Holder, ...] = field(default=(), repr=False)  # the calls it is made in
    covered: bool = False  # a call already reserved here is under way: do not meter it twice (C52)
    outer: Charge | None = field(default=None, repr=False)
    owner: object = field(default=None, repr=False)  # the block that made it current

    def attribution(self) -> Attribution:
        base = self.source.resolve() if self.source else Attribution()
        return base.merged(dict(self.stated))

    async def aattribution(self) -> Attribution:
        base = await self.source.aresolve() if self.source else Attribution()
        return base.merged(dict(self.stated))

    def over(self, values: dict[str, Any], trace_id: str | None, runs: tuple[Run, ...]) -> Charge:
        stated = dict(self.stated) | {
            name: checked_identifier(name, value)
            for name, value in values.items()
            if value is not None
        }
        trace = self.trace_id if trace_id is None else checked_identifier("trace_id", trace_id)
        return replace(
            self,
            stated=tuple(stated.items()),
            trace_id=trace,
            runs=self.runs + runs,
            job=self.job or Job(),
            outer=self,
        )


NOBODY = Charge()
_current: ContextVar[Charge] = ContextVar("token_allowance_charge", default=NOBODY)


def current() -> Charge:
    return _current.get()


@contextmanager
def entered(charge: Charge) -> Iterator[Charge]:
    """Make this the current charge for the block."""
    token = _current.set(charge)
    try:
        yield charge
    finally:
        _current.reset(token)


class charge_to:
    """Charge the model calls made inside to this tenant, user, session and feature.

    ``with``, ``async with``, or a decorator of functions, coroutines and generators. There a value
    may be a callable: it is given the decorated function's arguments of the same names.
    ``max_calls`` and ``max_cost`` (dollars: Decimal, int or str) cap this run as a whole, whatever
    threads it uses. Values that are not given are inherited from outside.
    """

    def __init__(
        self,
        *,
        tenant: Any = None,
        user: Any = None,
        session: Any = None,
        feature: Any = None,
        max_calls: int | None = None,
        max_cost: Decimal | int | str | None = None,
        trace_id: Any = None,
    ) -> None:
        self.values = dict(zip(NAMES, (tenant, user, session, feature), strict=True))
        self.max_calls = max_calls
        self.max_cost_micros = None if max_cost is None else to_micros(max_cost)
        self.trace_id = trace_id

    def charge(
        self, given: dict[str, Any] | None = None, decorated: Callable[..., Any] | None = None
    ) -> Charge:
        """The charge for one run; ``given`` are the arguments of a ``decorated`` call."""
        values, trace_id = dict(self.values), self.trace_id
        if given is None:
            if late := [n for n, v in {**values, "trace_id": trace_id}.items() if callable(v)]:
                raise TypeError(f"{late[0]} may be a callable only where a function is decorated")
        else:
            values = {name: _called(value, given) for name, value in values.items()}
            trace_id = _called(trace_id, given)
        return current().over(values, trace_id, self._runs(current(), decorated))

    def _runs(self, charge: Charge, decorated: Callable[..., Any] | None) -> tuple[Run, ...]:
        """Caps of a task hold for all its attempts, also after a worker died: the store counts."""
        if self.max_calls is None and self.max_cost_micros is None:
            return ()
        outer, job = runs.path(charge.runs), charge.job
        caps = self.max_calls, self.max_cost_micros
        if job is not None and (part := job.part(decorated)):
            return (Run.elsewhere(f"{outer}{part}/", *caps, job.since, not job.again),)
        return (Run(*caps, outer=outer),)

    def __enter__(self) -> Charge:
        return self.enter(self.charge())

    def enter(self, charge: Charge) -> Charge:
        """Make it current until ``__exit__``, which may come in a generator's later step."""
        return self.make_current(replace(charge, owner=self))

    @staticmethod
    def make_current(charge: Charge) -> Charge:
        _current.set(charge)
        return charge

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Leave what this block made current, wherever it is: a generator that the collector
        closes must not take the charge of the request that happens to run."""
        charge: Charge | None = current()
        while charge is not None and charge.owner is not self:
            charge = charge.outer
        if charge is not None:
            _current.set(charge.outer or NOBODY)

    async def __aenter__(self) -> Charge:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, tb)

    def __call__(self, function: F) -> F:
        if hasattr(function, "apply_async") or not callable(function):
            raise TypeError(
                f"charge_to decorates functions, not {type(function).__name__}; put it under the "
                "task decorator, nearest to the function"
            )
        signature = inspect.signature(function)

        def charge(args: Any, kwargs: Any) -> Charge:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return self.charge(dict(bound.arguments), wrapper)

        wrapper = _wrapper(function, charge)
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]


def _called(value: Any, given: dict[str, Any]) -> Any:
    if not callable(value):
        return value
    wanted = inspect.signature(value).parameters
    if any(p.kind is p.VAR_KEYWORD for p in wanted.values()):
        return value(**given)
    return value(**{name: given[name] for name in wanted if name in given})


def _body(function: Any) -> Any:
    """What runs when it is called: the function in a partial, the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def _wrapper(function: Callable[..., Any], charge: Callable[..., Charge]) -> Callable[..., Any]:
    body = _body(function)
    if iscoroutinefunction(function) or iscoroutinefunction(body):

        @functools.wraps(function)
        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with entered(charge(args, kwargs)):
                return await function(*args, **kwargs)

        return run_coroutine
    if inspect.isasyncgenfunction(body):

        @functools.wraps(function)
        def run_async_generator(*args: Any, **kwargs: Any) -> Any:
            return async_steps(function(*args, **kwargs), charge(args, kwargs))

        return run_async_generator
    if inspect.isgeneratorfunction(body):

        @functools.wraps(function)
        def run_generator(*args: Any, **kwargs: Any) -> Any:
            return steps(function(*args, **kwargs), charge(args, kwargs))

        return run_generator

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with entered(charge(args, kwargs)):
            return function(*args, **kwargs)

    return run


def steps(inner: Generator[Any, Any, Any], charge: Charge) -> Generator[Any, Any, Any]:
    """A generator each of whose steps runs under ``charge``, and whose consumer does not.

    What a step makes current (a ``charge_to`` held across a yield) is current again in the next.
    """
    advance: Callable[[], Any] = functools.partial(next, inner)
    try:
        while True:
            with entered(charge):
                try:
                    value = advance()
                except StopIteration as stop:
                    return stop.value
                charge = current()
            try:
                sent = yield value
            except GeneratorExit:
                raise
            except BaseException as error:
                advance = functools.partial(inner.throw, error)
            else:
                advance = functools.partial(inner.send, sent)
    finally:
        with entered(charge):
            inner.close()


async def async_steps(inner: AsyncGenerator[Any, Any], charge: Charge) -> AsyncGenerator[Any, Any]:
    """The same for an asynchronous generator."""
    advance: Callable[[], Any] = functools.partial(inner.asend, None)
    try:
        while True:
            with entered(charge):
                try:
                    value = await advance()
                except StopAsyncIteration:
                    return
                charge = current()
            try:
                sent = yield value
            except GeneratorExit:
                raise
            except BaseException as error:
                advance = functools.partial(inner.athrow, error)
            else:
                advance = functools.partial(inner.asend, sent)
    finally:
        with entered(charge):
            await inner.aclose()
