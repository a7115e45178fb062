"""The queues of calls that wait for room."""

from __future__ import annotations

from django.db import models


class Ticket(models.Model):
    """One waiting call in the queue of one budget. Only DatabaseStore writes it.

    ``number`` is the call's place, the same in every queue that it stands in, so that two calls
    never wait for each other; ``until`` ends it if the caller has died (protocol 15).
    """

    call = models.UUIDField()
    key = models.TextField()
    number = models.BigIntegerField()
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key", "call"], name="allowance_ticket_once"),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.key}"
