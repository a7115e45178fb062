from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models


class Person(AbstractUser):
    """A host project's own user: known by an address, with a key that is no number."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    username = None  # type: ignore[assignment]
    email = models.EmailField(unique=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS = []
