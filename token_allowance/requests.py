"""Who a request's model calls are charged to: found out when the first of them is made."""

from __future__ import annotations

import inspect
import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.contrib.sessions.backends import signed_cookies
from django.db import connections
from django.http import HttpRequest
from django.utils.crypto import salted_hmac
from django.utils.functional import LazyObject, empty

from token_allowance import conf
from token_allowance.attribution import NAMES, Charge
from token_allowance.limits import Attribution, checked_identifier
from token_allowance.runs import Job, Run
from token_allowance.threads import on_loop

T = TypeVar("T")
REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,99}")
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-.*")


def charge_of(request: HttpRequest) -> Charge:
    """The charge of a new request: its source, its caps as one run, its trace id. No query."""
    settings = conf.current()
    max_calls, max_cost_micros = settings.max_calls, settings.max_cost_micros
    capped = max_calls is not None or max_cost_micros is not None
    runs = (Run(max_calls, max_cost_micros, outer=""),) if capped else ()
    source = RequestSource(request)
    return Charge(source=source, runs=runs, trace_id=trace_id(request), job=Job())


def trace_id(request: HttpRequest) -> str:
    """The id a proxy or client gave the request, if it is well-formed; else a new one."""
    given = request.headers.get("X-Request-ID", "")
    if REQUEST_ID.fullmatch(given):
        return given
    if found := TRACEPARENT.fullmatch(request.headers.get("traceparent", "")):
        return found[1]
    return uuid.uuid4().hex


class RequestSource:
    """Attribution of a request: explicit, then the authenticated user, then trusted headers.

    It is remembered once a user is known, for as long as ``request.user`` stays the same object:
    DRF, and a login in the view, put another one there (case C78).
    """

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._memo: tuple[object, Attribution] | None = None

    def resolve(self) -> Attribution:
        """Also from a synchronous client in an async view, where Django forbids queries here."""
        found = self._remembered()
        if found is not None:
            return found
        return _in_thread(self._resolve) if on_loop() else self._resolve()

    async def aresolve(self) -> Attribution:
        found = self._remembered()
        if found is not None:
            return found
        stated = _checked(await self._astated())
        user = None if stated.get("user") else await self._auser_id()
        session = None if stated.get("session") else await self._asession_key()
        return self._combine(stated, user, session)

    def _resolve(self) -> Attribution:
        stated = _checked(self._stated())
        user = None if stated.get("user") else user_id(getattr(self._request, "user", None))
        session = None if stated.get("session") else self._session_key()
        return self._combine(stated, user, session)

    def _remembered(self) -> Attribution | None:
        if self._memo is None or self._memo[0] is not getattr(self._request, "user", None):
            return None
        return self._memo[1]

    def _combine(
        self, stated: Mapping[str, object], user: str | None, session: str | None
    ) -> Attribution:
        server = {"user": user, "session": session}
        found = Attribution().merged(trusted(self._request)).merged(_valid(server)).merged(stated)
        if found.user:
            self._memo = getattr(self._request, "user", None), found
        return found

    def _stated(self) -> Any:
        found = _explicit()(self._request)
        return async_to_sync(_awaited)(found) if inspect.isawaitable(found) else found

    async def _astated(self) -> Any:
        explicit = _explicit()
        called = explicit if iscoroutinefunction(explicit) else sync_to_async(explicit)
        found = await called(self._request)
        return await found if inspect.isawaitable(found) else found

    async def _auser_id(self) -> str | None:
        user = getattr(self._request, "user", None)
        auser = getattr(self._request, "auser", None)
        if _unloaded(user) and auser is not None and (known := user_id(await auser())):
            return known
        # Other middleware may have replaced the lazy user alone, so it has the last word.
        return await sync_to_async(user_id)(user) if _unloaded(user) else user_id(user)

    def _session_key(self) -> str | None:
        session = self._session()
        if session is None:
            return None
        session.keys()  # loading it drops a key that this server never gave out (case C92)
        return _key(session)

    async def _asession_key(self) -> str | None:
        session = self._session()
        if session is None:
            return None
        await session.akeys()
        return _key(session)

    def _session(self) -> Any:
        """The session if it has a key. In signed cookies the key is the data: no identity."""
        session = getattr(self._request, "session", None)
        keyless = isinstance(session, signed_cookies.SessionStore) or not _key(session)
        return None if keyless else session


def user_id(user: Any) -> str | None:
    """The primary key of an authenticated user, as text."""
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    key = getattr(user, "pk", None)
    return None if key is None else str(key)


def trusted(request: HttpRequest) -> dict[str, str]:
    """What TRUSTED_HEADERS say, if the peer itself is in TRUSTED_PROXIES (case C92).

    A header that came twice is joined by a comma, and nobody can tell who wrote which half: it
    is ignored, as is a value that is no identifier. The proxy must drop what clients send.
    """
    settings = conf.current()
    if not settings.TRUSTED_HEADERS or not _from_proxy(request, settings.TRUSTED_PROXIES):
        return {}
    given = {name: request.headers.get(h, "") for name, h in settings.TRUSTED_HEADERS.items()}
    return _valid({name: value.strip() for name, value in given.items() if "," not in value})


def _from_proxy(request: HttpRequest, proxies: object) -> bool:
    try:
        peer = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return False
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped:
        peer = peer.ipv4_mapped
    return any(peer in network for network in _networks(proxies))


def _networks(proxies: object) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    if not isinstance(proxies, list | tuple | set | frozenset):
        raise conf.ConfigurationError("TOKEN_ALLOWANCE['TRUSTED_PROXIES'] must be a list.")
    return _parsed_networks(tuple(str(proxy) for proxy in proxies))


@lru_cache(maxsize=8)
def _parsed_networks(
    proxies: tuple[str, ...],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(proxy, strict=False) for proxy in proxies)
    except ValueError as error:
        raise conf.ConfigurationError(
            f"TOKEN_ALLOWANCE['TRUSTED_PROXIES']: {error}; "
            "write addresses or networks such as 10.0.0.0/8."
        ) from error


def check_proxies() -> None:
    """Raise ConfigurationError now rather than at the first request with a trusted header."""
    _networks(conf.current().TRUSTED_PROXIES)


def _explicit() -> Callable[..., Any]:
    path = conf.current().ATTRIBUTION
    found: Callable[..., Any] = _nothing if path is None else conf.imported(path)
    return found


def _nothing(request: HttpRequest) -> None:
    return None


def _checked(found: Any) -> Mapping[str, object]:
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise conf.ConfigurationError(
            f"TOKEN_ALLOWANCE['ATTRIBUTION'] returned {type(found).__name__}, not a dict."
        )
    if unknown := set(found) - set(NAMES):
        raise conf.ConfigurationError(
            f"TOKEN_ALLOWANCE['ATTRIBUTION'] returned the keys {sorted(map(str, unknown))}; "
            f"it may return {', '.join(NAMES)}."
        )
    return found


def _valid(values: Mapping[str, str | None]) -> dict[str, str]:
    valid = {}
    for name, value in values.items():
        with suppress(ValueError):
            valid[name] = checked_identifier(name, value or "")
    return valid


def _key(session: Any) -> str | None:
    """A name for the session, not its key: a reader of the ledger must not be able to use it."""
    key: str | None = getattr(session, "session_key", None)
    return session_name(key) if key else None


def session_name(session_key: str) -> str:
    """What a server session is called in budgets and in the ledger: 32 hex digits."""
    made = salted_hmac("token_allowance.session", session_key, algorithm="sha256")
    return made.hexdigest()[:32]


def _unloaded(user: object) -> bool:
    # Not isinstance: that would ask the lazy object for its class, which loads it.
    return issubclass(type(user), LazyObject) and user.__dict__.get("_wrapped") is empty


async def _awaited(found: Any) -> Any:
    return await found


def _in_thread(function: Callable[[], T]) -> T:
    """Run in a thread of its own, whose database connections end with it.

    Not in Django's thread for synchronous code: that one may be waiting for this loop.
    """

    def work() -> T:
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as helper:
        return helper.submit(copy_context().run, work).result()
