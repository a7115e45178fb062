"""What a metered client knows of itself, and how it sees a request about to be sent."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from token_allowance import conf, contexts
from token_allowance.attribution import Charge, current
from token_allowance.decisions import reserving
from token_allowance.estimate import Counting
from token_allowance.estimate.references import references
from token_allowance.exceptions import UnmeteredEndpoint
from token_allowance.limits import Attribution
from token_allowance.plans import Attempt
from token_allowance.providers.adapter import Adapter
from token_allowance.providers.endpoints import Endpoint, Unmetered, host_provider, recognise
from token_allowance.providers.forms import FORM, form
from token_allowance.providers.rewriting import MODEL_IN_PATH, Change
from token_allowance.providers.signatures import is_signed
from token_allowance.reservations import Reservation
from token_allowance.runs import Job, Run
from token_allowance.tries import Try, finished
from token_allowance.waiting import Place

logger = logging.getLogger("token_allowance")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call about to be sent: what it asks for, and how its answer is read."""

    attempt: Attempt
    adapter: Adapter
    stream: bool
    body: bytes | None  # the body to send instead, when we ask for usage ourselves
    signed: bool = False  # by the caller: it is sent as it stands

    def with_context(self) -> Attempt:
        """The attempt with what it reads besides what it sends; the ledger may be asked for it."""
        attempt = self.attempt
        if not attempt.references:
            return attempt
        return replace(attempt, context=contexts.context(attempt.references))


class Meter:
    """Attribution and caps of one metered client, on top of those of the code that calls it."""

    def __init__(
        self,
        values: dict[str, Any],
        *,
        provider: str = "",
        client_provider: str = "",
        max_calls: int | None = None,
        max_cost_micros: int | None = None,
    ) -> None:
        self.values = values
        self.provider = provider
        self.client_provider = client_provider
        self.max_calls = max_calls
        self.max_cost_micros = max_cost_micros
        self._runs: WeakKeyDictionary[Job, Run] = WeakKeyDictionary()
        self._lifetime = self._run()

    def charge(self) -> Charge:
        """Who pays for a call made now: the code around it says, else what the client states."""
        charge = current()
        inner = dict(charge.stated)
        own = {name: value for name, value in self.values.items() if name not in inner}
        return charge.over(own, None, self._capped(charge))

    def endpoint(self, request: Any) -> Endpoint | None:
        """The model endpoint a request goes to; None for what is free. Reads no body.

        Raises UnmeteredEndpoint for what may cost money and cannot be read.
        """
        url = request.url
        provider = self.provider or host_provider(url.host) or self.client_provider
        endpoint = recognise(request.method, url.host, url.path, provider)
        if endpoint is Unmetered.FREE:
            return None
        if not isinstance(endpoint, Endpoint):
            self._unsupported(f"{request.method} {url.path}")
            return None
        return endpoint

    def model_call(self, endpoint: Endpoint, request: Any, content: bytes) -> ModelCall | None:
        """What the body asks for; None if it cannot be read and goes unmetered."""
        path, kind = request.url.path, request.headers.get("content-type", "")
        try:
            body = _body(kind, content)
            if "model" not in body and (found := MODEL_IN_PATH.search(path)):
                body = {**body, "model": unquote(found.group(1))}
            asked = endpoint.adapter.request(body, _counting(body))
        except (ValueError, TypeError, RecursionError) as error:
            self._unsupported(f"{request.method} {path} ({error})")
            return None
        with_usage = endpoint.adapter.ask_usage(body)
        signed = is_signed(request.headers.raw, request.url.query.decode("ascii", "replace"))
        fixed = signed or _is_form(kind)
        return ModelCall(
            attempt=Attempt(
                provider=endpoint.provider,
                model=asked.model,
                input_tokens=asked.input_tokens,
                max_output_tokens=asked.max_output_tokens,
                choices=asked.choices,
                service_tier=asked.service_tier,
                references=references(body, content),
                counted=not conf.current().strict,
                expected=asked.expected,
                changeable=(Change.NOTHING if fixed else endpoint.adapter.changeable(body, path)),
            ),
            adapter=endpoint.adapter,
            stream=asked.stream,
            body=None if with_usage is None or signed else json.dumps(with_usage).encode(),
            signed=signed,
        )

    def reserve(
        self,
        call: ModelCall,
        charge: Charge,
        attribution: Attribution,
        place: Place | None = None,
    ) -> Reservation:
        return finished(self.reserving(call, charge, attribution, place))

    def reserving(
        self, call: ModelCall, charge: Charge, attribution: Attribution, place: Place | None
    ) -> Try[Reservation]:
        """``reserve`` as a try."""
        return reserving(call.with_context, attribution, charge, place)

    def over(self, other: Meter) -> Meter:
        """This meter put over one that the client already had: metered once, not twice."""
        return Meter(
            {**other.values, **self.values},
            provider=self.provider or other.provider,
            client_provider=self.client_provider,
            max_calls=other.max_calls if self.max_calls is None else self.max_calls,
            max_cost_micros=(
                other.max_cost_micros if self.max_cost_micros is None else self.max_cost_micros
            ),
        )

    def _unsupported(self, what: str) -> None:
        if conf.current().MODE != "observe":
            raise UnmeteredEndpoint(
                f"token_allowance cannot meter {what}; nothing was sent. Use allowance.call()."
            )
        logger.warning("token_allowance: %s goes unmetered", what)

    def _run(self) -> Run | None:
        if self.max_calls is None and self.max_cost_micros is None:
            return None
        return Run(self.max_calls, self.max_cost_micros)

    def _capped(self, charge: Charge) -> tuple[Run, ...]:
        """The client's own caps hold for one request or job; outside of any, for its lifetime."""
        if self._lifetime is None:
            return ()
        if charge.job is None:
            return (self._lifetime,)
        run = self._runs.get(charge.job)
        if run is None:
            run = self._runs.setdefault(charge.job, Run(self.max_calls, self.max_cost_micros))
        return (run,)


def _counting(body: dict[str, Any]) -> Counting:
    settings = conf.current()
    model = body.get("model")
    return Counting(
        media_tokens=settings.media_tokens,
        strict=settings.strict,
        model=model if isinstance(model, str) else "",
    )


def _body(content_type: str, content: bytes) -> dict[str, Any]:
    """The body of a request, JSON or a form. Raises ValueError for anything else."""
    if _is_form(content_type):
        return form(content_type, content)
    body = json.loads(content)
    if not isinstance(body, dict):
        raise ValueError("the body is no JSON object")
    return body


def _is_form(content_type: str) -> bool:
    return content_type.lower().startswith(FORM)
