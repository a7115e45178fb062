"""The views of the demo. A refusal is not caught: the middleware answers it."""

from __future__ import annotations

from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    JsonResponse,
)
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from project.demo import agent as agents
from project.demo import chat as chats
from project.demo import clients, figures, forms, offers, page, people
from project.demo import climb as climbs
from project.demo import race as races
from project.demo.people import Person
from token_allowance import allowance, conf
from token_allowance.models import Reservation


@require_safe
@page.strict
def index(request: HttpRequest) -> HttpResponseBase:
    person = _person(request.GET.get("user", ""))
    return page.whole(request, person)


@page.strict
def chat(request: HttpRequest) -> HttpResponseBase:
    """Ask a model. HTML is streamed; JSON is the whole answer."""
    if request.method != "POST":
        return _home(request)
    form = forms.Chat(request.POST)
    if not form.is_valid():
        return _invalid(request, form)
    person, offer = form.cleaned_data["user"], form.cleaned_data["offer"]
    question = form.cleaned_data["question"]
    try:
        with allowance.charge_to(tenant=person.tenant, user=person.user, feature="chat"):
            if page.wants_json(request):
                model, answer = chats.whole(offer, question)
                return JsonResponse({"model": model, "answer": answer})
            pieces = chats.pieces(offer, question)
            served = next(pieces)
    except clients.errors() as error:
        return _failed(request, person, error)
    shown = {"asked": question, "offer": offer, "served": served}
    return page.streamed(request, person, pieces, **shown)


@page.strict
def agent(request: HttpRequest) -> HttpResponseBase:
    """Let the agent walk until its cap. Being cut off there is a result, not a failure."""
    if request.method != "POST":
        return _home(request)
    form = forms.Agent(request.POST)
    if not form.is_valid():
        return _invalid(request, form)
    person, offer = form.cleaned_data["user"], form.cleaned_data["offer"]
    try:
        with allowance.charge_to(
            tenant=person.tenant, user=person.user, feature="agent", max_calls=agents.MAX_CALLS
        ):
            walk = agents.walk(offer)
    except clients.errors() as error:
        return _failed(request, person, error)
    stopped = allowance.problem(walk.stopped) if walk.stopped else None
    if page.wants_json(request):
        return JsonResponse({"calls": walk.calls, "found": walk.found, "stopped": stopped})
    return page.whole(request, person, walk=walk, stopped=stopped, offer=offer)


@page.strict
def climb(request: HttpRequest) -> HttpResponseBase:
    """Let an agent work for a new user until that user's budget is used up."""
    if request.method != "POST":
        return _home(request)
    form = forms.Acting(request.POST)
    if not form.is_valid():
        return _invalid(request, form)
    person = form.cleaned_data["user"]
    if not offers.simulated():
        return _failed(request, person, None)
    made = climbs.run(climbs.next_climber())
    stopped = allowance.problem(made.stopped) if made.stopped else None
    if page.wants_json(request):
        steps = [step.as_dict() for step in made.steps]
        found = {"user": made.climber.user, "steps": steps, "stopped": stopped}
        return JsonResponse(found)
    return page.whole(request, person, climb=made, stopped=stopped)


@page.strict
def race(request: HttpRequest) -> HttpResponseBase:
    """Race two requests to this very server against each other."""
    if request.method != "POST":
        return _home(request)
    form = forms.Acting(request.POST)
    if not form.is_valid():
        return _invalid(request, form)
    person = form.cleaned_data["user"]
    if not offers.simulated():
        return _failed(request, person, None)
    racer = races.next_racer()
    site = races.Site(int(request.META["SERVER_PORT"]), request.COOKIES["csrftoken"])
    run = races.run(site, reverse("demo:race-call"), racer)
    if page.wants_json(request):
        outcomes = [outcome.as_dict() for outcome in run.outcomes]
        return JsonResponse({"user": racer.user, "outcomes": outcomes})
    return page.whole(request, person, race=run, racer_meter=figures.meters(racer)[0])


@require_POST
def race_call(request: HttpRequest) -> HttpResponseBase:
    """One call of 8 cents, charged to a racer; for the race alone."""
    form = forms.Racer(request.POST)
    if not form.is_valid():
        return JsonResponse({"errors": form.errors}, status=400)
    racer = form.cleaned_data["racer"]
    with allowance.charge_to(tenant=races.TENANT, user=racer, feature="race"):
        _, answer = chats.whole(offers.flat(), form.cleaned_data["question"])
    return JsonResponse({"user": racer, "answer": answer})


@require_POST
def start_over(request: HttpRequest) -> HttpResponseBase:
    """Empty the demo's ledger, and set the counters to what it then says."""
    Reservation.objects.all().delete()
    conf.store().rebuild(timezone.now())
    return _home(request)


def _person(user: str) -> Person:
    try:
        return people.find(user)
    except LookupError:
        return people.PEOPLE[0]


def _home(request: HttpRequest) -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("demo:index"))


def _invalid(request: HttpRequest, form: forms.Acting) -> HttpResponse:
    said = [message for messages in form.errors.values() for message in messages]
    if page.wants_json(request):
        return JsonResponse({"errors": form.errors}, status=400)
    return page.whole(request, people.PEOPLE[0], status=400, fault=" ".join(map(str, said)))


def _failed(request: HttpRequest, person: Person, error: Exception | None) -> HttpResponse:
    said = clients.told(error) if error else "The simulated provider is not running: ./run demo"
    if page.wants_json(request):
        return JsonResponse({"error": said}, status=502)
    return page.whole(request, person, status=502, fault=said)
