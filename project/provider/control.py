"""The control plane: other processes read the log and set the script over HTTP."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Protocol

from project.provider.http import Head
from project.provider.log import Log
from project.provider.script import Reply, Script

PREFIX = "/_control/"


class Controlled(Protocol):
    log: Log
    script: Script

    def reset(self) -> None: ...


def answer(site: Controlled, head: Head, body: bytes) -> tuple[int, Any]:
    """Status and document. A page in a browser is turned away: it would send an Origin."""
    if "origin" in head.headers:
        return 403, {"error": "not for browsers"}
    match head.method, head.path.removeprefix(PREFIX):
        case "GET", "log":
            return 200, site.log.to_json()
        case "GET", "totals":
            return 200, asdict(site.log.totals())
        case "POST", "reset":
            site.reset()
            return 200, {}
        case "POST", "script":
            return _set_script(site.script, body)
    return 404, {"error": "no such control"}


def _set_script(script: Script, body: bytes) -> tuple[int, Any]:
    try:
        document = json.loads(body)
        replies = [Reply.from_json(reply) for reply in document.get("replies", ())]
        default = document.get("default")
        script.set(replies, None if default is None else Reply.from_json(default))
    except (ValueError, TypeError, AttributeError) as problem:
        return 400, {"error": str(problem)}
    return 200, {}
