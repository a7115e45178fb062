"""Stop calls, and let them through again: pages that ask, and act only when they are sent."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from token_allowance.exceptions import StoreUnavailable
from token_allowance.management import targets, traffic
from token_allowance.models import Switch
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import NAMES, Target, disengage, engage, target
from token_allowance_dashboard import page, standing
from token_allowance_dashboard.access import FLIP, FLIP_GLOBAL, access, screen
from token_allowance_dashboard.orders import FIRST_PERCENT, ResumeOrder, StopOrder
from token_allowance_dashboard.screens.now import blast_radius

EVERYTHING = "everything"
UNREACHED = (
    "Nothing was {}: the database cannot be reached. To stop calls without it, stop the processes "
    "that make them, or take the provider's keys away."
)


@require_http_methods(["GET", "HEAD", "POST"])
def stop(request: HttpRequest) -> HttpResponseBase:
    needed = FLIP_GLOBAL if EVERYTHING in request.GET else FLIP
    return screen(needed)(_stop)(request)


def _stop(request: HttpRequest) -> HttpResponse:
    values = {name: v for name in standing.SPOKEN if (v := request.GET.get(name, "").strip())}
    everything = EVERYTHING in request.GET
    if everything and not access(request).everything:
        raise Http404
    if not values and not everything:
        return _choose(request, values)
    try:
        chosen = target(None, everything, values)
    except ValueError as error:
        return _choose(request, values, f"Nothing can be stopped so: {error}.")
    if not everything and not access(request).everything:
        if not chosen.tenant:
            return _choose(request, values, "You may stop calls of your tenants: name which.")
        access(request).check(chosen.tenant)
    return _ask_or_stop(request, chosen)


def _choose(request: HttpRequest, values: dict[str, str], problem: str = "") -> HttpResponse:
    context = {"fields": [(n, values.get(n, "")) for n in standing.SPOKEN], "problem": problem}
    return page.show(request, "switch_choose.html", context, title="Stop calls",
                     question="Which calls?", tab="switches")  # fmt: skip


def _ask_or_stop(request: HttpRequest, chosen: Target) -> HttpResponse:
    everything = not any(chosen.values)
    engaged = _running(chosen)
    form = StopOrder(request.POST or None, everything=everything)
    problem, status = "", 200
    if request.method == "POST" and form.is_valid():
        try:
            return _stopped(request, chosen, form, engaged)
        except StoreUnavailable:
            problem, status = UNREACHED.format("stopped"), 503
    words = standing.words(chosen)
    context = {
        "target": chosen,
        "parts": standing.named(chosen).items(),
        "words": words,
        "form": form,
        "problem": problem,
        "present": engaged,
        "blast": blast_radius(standing.scope(chosen, access(request).tenants), timezone.now()),
        "doubts": list(traffic.doubts(chosen)) if access(request).everything else (),
        "command": targets.command("stop", chosen, "--reason", "…"),
    }
    return page.show(request, "switch_stop.html", context, title=f"Stop {words}?",
                     question="What would be refused, and until when?", tab="switches",
                     status=status)  # fmt: skip


def _stopped(
    request: HttpRequest, chosen: Target, form: StopOrder, engaged: Switch | None
) -> HttpResponse:
    """Engage, once for a form that is sent twice; what stands already is replaced."""
    by = request.user.get_username()
    call = {**_call(request, chosen), **form.how}
    if engaged is None:
        try:
            engage(**call, anew=True)
        except ValueError:  # somebody has stopped them just now
            engaged = _running(chosen)
    if engaged is not None and not form.repeats(engaged, by):
        engage(**call)
    found = _running(chosen)
    if found is None:  # released again at once
        return redirect("token_allowance_dashboard:switches")
    messages.success(request, f"Stopped: {standing.words(chosen)}.", fail_silently=True)
    return redirect("token_allowance_dashboard:switch", found.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@screen()
def resume(request: HttpRequest, pk: int) -> HttpResponseBase:
    switch = get_object_or_404(standing.visible(access(request)), pk=pk)
    needed = FLIP if standing.named(switch) else FLIP_GLOBAL
    return screen(needed)(_resume)(request, switch)


def _resume(request: HttpRequest, switch: Switch) -> HttpResponse:
    now = timezone.now()
    if standing.over_at(switch, now) is not None:
        messages.info(
            request, f"{standing.words(switch)}: not stopped any more.", fail_silently=True
        )
        return redirect("token_allowance_dashboard:switch", switch.pk)
    whole = switch.percent == ALL_PERCENT and not switch.user
    form = ResumeOrder(request.POST or None, whole=whole, initial={"stopped_for": switch.reason})
    problem, status = "", 200
    if request.method == "POST" and form.is_valid():
        if form.cleaned_data["stopped_for"] != switch.reason:
            problem = "It was stopped anew meanwhile, for another reason. Read it, and send again."
            form.data = {**request.POST.dict(), "stopped_for": switch.reason}
        else:
            try:
                return _resumed(request, switch, form)
            except StoreUnavailable:
                problem, status = UNREACHED.format("resumed"), 503
    words = standing.words(switch)
    context = {
        "switch": switch,
        "parts": standing.named(switch).items(),
        "words": words,
        "form": form,
        "problem": problem,
        "measured": standing.measured(switch, now),
        "now": now,
        "others": _others(request, switch),
        "command": targets.command("resume", switch),
    }
    return page.show(request, "switch_resume.html", context, title=f"Resume {words}?",
                     question="Why was it stopped, and what waits?", tab="switches",
                     status=status)  # fmt: skip


def _resumed(request: HttpRequest, switch: Switch, form: ResumeOrder) -> HttpResponse:
    call = {**_call(request, switch), "reason": form.cleaned_data["reason"]}
    words = standing.words(switch)
    if form.is_partial:
        left = None
        if switch.ends_at is not None:
            left = max(0.01, (switch.ends_at - timezone.now()).total_seconds() / 60)
        engage(**call, minutes=left, percent=ALL_PERCENT - FIRST_PERCENT,
               cut_streams=switch.cuts_streams)  # fmt: skip
        said = (
            f"{words}: {FIRST_PERCENT} % of the callers are let through, the others stay stopped."
        )
    elif disengage(**call, engaged_for=switch.reason):
        said = f"Resumed: {words}."
    else:
        said = f"{words}: somebody was faster; this is how it stands."
    messages.success(request, said, fail_silently=True)
    return redirect("token_allowance_dashboard:switch", switch.pk)


def _call(request: HttpRequest, of: standing.Targeted) -> dict[str, Any]:
    """Which calls, and who says so from where: keywords of ``engage`` and ``disengage``."""
    named = standing.named(of)
    by = request.user.get_username()
    return {**named, "everything": not named, "by": by, "source": "dashboard"}


def _running(chosen: Target) -> Switch | None:
    return targets.running().filter(**dict(zip(NAMES, chosen.values, strict=True))).first()


def _others(request: HttpRequest, switch: Switch) -> list[str]:
    """What else is engaged, and so may go on stopping some of these calls."""
    seen = standing.visible(access(request)).filter(pk__in=targets.running()).exclude(pk=switch.pk)
    mine = standing.named(switch)
    return [
        targets.line(other)
        for other in seen[:50]
        if all(mine.get(name, value) == value for name, value in standing.named(other).items())
    ]
