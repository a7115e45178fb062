"""What may be changed of a request before it is sent, for APIs that do it alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Flag
from typing import Any, Final

from token_allowance.providers.fields import ceiling

MODEL_IN_PATH: Final = re.compile(r"/(?:deployments|models)/([^/:]+)[/:]")  # Azure's, Google's


class Change(Flag):
    """What may be changed of a request without spoiling what it asks for."""

    NOTHING = 0
    LENGTH = 1  # the most that an answer may have
    MODEL = 2
    ALL = 3


class AsSent:
    """For APIs whose requests are never changed: another model's vectors or sounds are no cheaper
    answer to the same question."""

    __slots__ = ()

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        return Change.NOTHING

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        return dict(body)

    def address(self, path: str, model: str) -> str:
        return path


class ModelInBody:
    """For APIs whose requests name the model in the body. Where the path names one too, as Azure's
    deployments do, it decides, and is nobody's to change but the caller's."""

    __slots__ = ()

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        if MODEL_IN_PATH.search(path) or self.binds(body):
            return Change.LENGTH
        return Change.ALL

    def binds(self, body: Mapping[str, Any]) -> bool:
        """Is there something in the request that only the model it names can take?"""
        return False

    def address(self, path: str, model: str) -> str:
        return path


def with_model(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A new body that names this model, if one is given."""
    return {**body, "model": model} if model else dict(body)


def lowered(body: Mapping[str, Any], name: str, most: int | None) -> dict[str, Any]:
    """A new body whose field is at most this; never more than it was."""
    if most is None:
        return dict(body)
    given = ceiling(body.get(name))
    return {**body, name: most if given is None else min(given, most)}
