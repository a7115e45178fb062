"""A store that can also be asked on an event loop, without a thread."""

from __future__ import annotations

from abc import abstractmethod

from token_allowance.stores.base import Decision, Outcome, Request, Settlement, Store


class AwaitedStore(Store):
    """Its coroutines do what is usual, and leave the rest to the methods that block."""

    @abstractmethod
    async def areserve(self, request: Request) -> Decision | None:
        """What ``reserve`` decides, if no counter has moved or the call is admitted.

        None: ask ``reserve`` with the same request, in a thread; it may have been admitted. If this
        is cancelled, or raises StoreUnavailable, the store owes the release of what may be held:
        see ``pay``.
        """

    @abstractmethod
    async def asettle(self, settlement: Settlement) -> Outcome | None:
        """What ``settle`` does. None: call ``settle``, in a thread; it may repeat this one."""

    @abstractmethod
    def pay(self) -> None:
        """Release what is owed, in a thread: reservations whose answer nobody has heard."""
