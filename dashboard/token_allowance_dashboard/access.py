"""Who may see and do what: permissions of Django, and the tenants a person is limited to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse

from token_allowance import conf

VIEW = "view_dashboard"
EXPORT = "export_spend"
LEDGER = "view_reservation"
FLIP = "flip_switch"
FLIP_GLOBAL = "flip_global_switch"
LIMITS = "change_limit"
ADD_LIMIT = "add_limit"
INCREASE = "add_limitincrease"
ACKNOWLEDGE = "acknowledge_alert"
#: What a disabled control says.
WHY_NOT = {
    EXPORT: "Exporting needs the permission “Can export spending”.",
    LEDGER: "The ledger needs the permission “Can view reservation”.",
    FLIP: "Stopping and resuming needs the permission “Can stop and resume calls of a tenant, "
    "user, feature or model”.",
    FLIP_GLOBAL: "Stopping everything needs the permission “Can stop and resume all calls”.",
    LIMITS: "Changing limits needs the permission “Can change limit”.",
    ADD_LIMIT: "Making limits needs the permission “Can add limit”.",
    INCREASE: "Granting more needs the permission “Can add limit increase”.",
    ACKNOWLEDGE: "Acknowledging needs the permission “Can acknowledge and mute alerts”.",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What the person who asks may do. ``tenants`` None: of all tenants, and of no tenant too."""

    user: Any
    tenants: frozenset[str] | None

    def may(self, permission: str) -> bool:
        return bool(self.user.has_perm(f"token_allowance.{permission}"))

    def why_not(self, permission: str) -> str:
        """Why a control is disabled; empty if it is not."""
        return "" if self.may(permission) else WHY_NOT[permission]

    @property
    def everything(self) -> bool:
        return self.tenants is None

    def sees(self, tenant: str) -> bool:
        """May rows of this tenant be shown? Rows without one are everybody's, so only for all."""
        return self.tenants is None or tenant in self.tenants

    def check(self, tenant: str) -> None:
        """Http404 for another's tenant: it does not exist for who may not see it (case C93)."""
        if not self.sees(tenant):
            raise Http404


def of(request: HttpRequest) -> Access:
    chosen = conf.current().STAFF_TENANT_FILTER
    found: Iterable[str] | None = conf.imported(chosen)(request.user) if chosen else None
    tenants = None if found is None else frozenset(map(str, found))
    return Access(request.user, tenants)


View = Callable[..., HttpResponseBase]


def screen(permission: str = VIEW) -> Callable[[View], View]:
    """A page for whoever has these rights; its view gets ``request.access``.

    Anonymous visitors are sent to the sign-in page, others are told what they lack.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            user = request.user
            if not user.is_authenticated:
                return redirect_to_login(request.get_full_path(), _sign_in())
            access = of(request)
            for needed in {VIEW, permission}:
                if not access.may(needed):
                    return _refused(request, needed)
            request.access = access  # type: ignore[attr-defined]
            return view(request, *args, **kwargs)

        return checked

    return decorate


def access(request: HttpRequest) -> Access:
    """What ``screen`` has found out."""
    found: Access = request.access  # type: ignore[attr-defined]
    return found


def _sign_in() -> str | None:
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return None  # settings.LOGIN_URL


def _refused(request: HttpRequest, permission: str) -> HttpResponseBase:
    why = WHY_NOT.get(permission, "The dashboard needs the permission “Can see the dashboard”.")
    return render(request, "token_allowance_dashboard/refused.html", {"why": why}, status=403)
