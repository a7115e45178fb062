"""A simulated model provider over real loopback HTTP: OpenAI, Anthropic, Google, Ollama."""

from __future__ import annotations

from project.provider.log import Entry, Totals
from project.provider.remote import ProviderProcess, RemoteProvider
from project.provider.request import ModelRequest
from project.provider.script import FIXED_COST, Reply
from project.provider.server import Provider

__all__ = [
    "FIXED_COST",
    "Entry",
    "ModelRequest",
    "Provider",
    "ProviderProcess",
    "RemoteProvider",
    "Reply",
    "Totals",
]
