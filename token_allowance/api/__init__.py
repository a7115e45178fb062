"""For Django REST framework, which is optional."""

from __future__ import annotations

from token_allowance.api.exceptions import exception_handler

__all__ = ["exception_handler"]
