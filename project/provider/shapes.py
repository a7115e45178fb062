"""The shape in which each API answers: one module each, with the same functions."""

from __future__ import annotations

from types import MappingProxyType, ModuleType

from project.provider import anthropic, embeddings, gemini, ollama, openai, responses

SHAPES = MappingProxyType(
    {
        "openai": openai,
        "anthropic": anthropic,
        "ollama": ollama,
        "gemini": gemini,
        "responses": responses,
        "embeddings": embeddings,
    }
)


def shape_of(api: str) -> ModuleType:
    return SHAPES[api]
