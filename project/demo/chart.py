"""An organisation chart, and the tool through which a model may look at it."""

from __future__ import annotations

from typing import Any

FIRST_NAME = "Ada Park"
REPORTS: dict[str, tuple[str, ...]] = {
    "Ada Park": ("Ben Ito", "Cleo Diaz", "Dara Kim"),
    "Ben Ito": ("Eli Novak", "Fay Osei"),
    "Cleo Diaz": ("Gus Lind", "Hana Mori", "Ivo Roth"),
    "Dara Kim": ("Jo Blum",),
    "Eli Novak": ("Kai Berg", "Lea Sato"),
    "Fay Osei": (),
    "Gus Lind": ("Mia Wolf",),
    "Hana Mori": (),
    "Ivo Roth": ("Ned Cruz", "Oda Falk"),
    "Jo Blum": ("Pia Voss",),
}
EVERYBODY = {*REPORTS, *(name for names in REPORTS.values() for name in names)}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "direct_reports",
        "description": "The names of the people who report to this person.",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


def direct_reports(name: str) -> list[str]:
    """Empty for somebody who leads nobody, and for a name that is not in the chart."""
    return list(REPORTS.get(name, ()))
