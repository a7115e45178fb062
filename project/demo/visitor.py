"""Somebody who uses the page over HTTP, without a browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT_SECONDS = 60.0
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def document(self) -> dict[str, Any]:
        """Empty if the body is no JSON object."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Visitor:
    """Opens the page once, keeps its CSRF cookie, and posts its forms."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self.page = self._send("GET", "/", {"Accept": "text/html"})
        cookie = SimpleCookie(self.page.headers.get("set-cookie", "")).get("csrftoken")
        self._token = cookie.value if cookie else ""

    def post(self, path: str, accept: str = "application/json", **fields: str) -> Answer:
        headers = {
            "Accept": accept,
            "Content-Type": FORM,
            "Cookie": f"csrftoken={self._token}",
            "X-CSRFToken": self._token,
        }
        return self._send("POST", path, headers, urlencode(fields))

    def _send(
        self, method: str, path: str, headers: dict[str, str], body: str | None = None
    ) -> Answer:
        connection = HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode())
        finally:
            connection.close()
