"""What the page may be asked to do."""

from __future__ import annotations

from typing import Any

from django import forms

from project.demo import offers, people, race
from project.demo.people import Person

QUESTION = "What does this answer cost me?"


class Acting(forms.Form):
    """Who asks. A real project takes this from the login, never from a form."""

    user = forms.CharField(max_length=20)

    def clean_user(self) -> Person:
        try:
            return people.find(self.cleaned_data["user"])
        except LookupError:
            raise forms.ValidationError("Nobody of that name is in the demo.") from None


class Chat(Acting):
    question = forms.CharField(max_length=2000)
    offer = forms.ChoiceField()

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.offers = {offer.key: offer for offer in self.possible()}
        choice = self.fields["offer"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [(key, offer.label) for key, offer in self.offers.items()]

    def possible(self) -> list[offers.Offer]:
        return offers.offers()

    def clean_offer(self) -> offers.Offer:
        return self.offers[self.cleaned_data["offer"]]


class Agent(Chat):
    question = None  # type: ignore[assignment]

    def possible(self) -> list[offers.Offer]:
        return offers.agent_offers()


class Racer(forms.Form):
    racer = forms.RegexField(rf"\A(?:{race.RACER.pattern})\Z")
    question = forms.CharField(max_length=20)
