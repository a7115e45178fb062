"""Who uses the demo: four users of two tenants, as a login would tell in a real project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Person:
    user: str
    tenant: str

    @property
    def name(self) -> str:
        return self.user.capitalize()


TENANTS = {"acme": "Acme Corp", "globex": "Globex"}
PEOPLE = (
    Person("ana", "acme"),
    Person("ben", "acme"),
    Person("cleo", "globex"),
    Person("dan", "globex"),
)


def find(user: str) -> Person:
    """Raises LookupError for somebody who is not in the demo."""
    for person in PEOPLE:
        if person.user == user:
            return person
    raise LookupError(user)
