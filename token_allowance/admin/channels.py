"""Channels: where alerts are sent. Each can be tried, and each message sent again."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.transaction import get_connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance import conf
from token_allowance.admin.base import NOTHING, AllowanceAdmin, ReadOnlyAdmin
from token_allowance.admin.generics import ChannelModelForm
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.channels import addresses, outbox, senders, wording
from token_allowance.models import Channel, Delivery
from token_allowance.models.channels import new_secret

Shown = str | SafeString
KINDS, STATES = Channel.Kinds, Delivery.States
POSTED = (KINDS.SLACK, KINDS.WEBHOOK)
ADDRESS = (
    "E-mail: addresses, parted by commas. Slack and webhook: an https address. Signal: nothing."
)
WORDS = {STATES.SENT: "sent", STATES.PENDING: "on its way", STATES.FAILED: "given up"}


class ChannelForm(ChannelModelForm):
    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        kind, address = cleaned.get("kind"), cleaned.get("address", "").strip()
        try:
            check_address(str(kind), address)
        except ValidationError as error:
            self.add_error("address", error)
        return {**cleaned, "address": address}


def check_address(kind: str, address: str) -> None:
    """What can be seen without asking anybody; the rest is checked whenever something is sent."""
    if kind == KINDS.EMAIL:
        recipients = senders.recipients_of(address)
        if not recipients:
            raise ValidationError("Write at least one e-mail address.")
        for one in recipients:
            validate_email(one)
    elif kind in POSTED:
        try:
            addresses.place(address, conf.current().WEBHOOK_ALLOWED)
        except addresses.Refused as error:
            raise ValidationError(f"Nothing would be sent: {error}.") from None
    elif address:
        raise ValidationError("A signal has no address.")


@admin.register(Channel)
class ChannelAdmin(AllowanceAdmin):
    form = ChannelForm
    list_display = ["name", "kind", "goes_to", "least_severity", "is_active", "last_message"]
    list_filter = ["kind", "is_active"]
    search_fields = ["name"]
    actions = ["send_test", "show_secret", "rotate_secret"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        last = Delivery.objects.filter(channel=OuterRef("pk")).order_by("-id")
        newest = {f"last_{name}": Subquery(last.values(name)[:1]) for name in ("state", "error")}
        channels: QuerySet[Any] = super().get_queryset(request).annotate(**newest)
        return channels

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """An address may be a secret: whoever may only look sees where it leads."""
        may_change = self.has_change_permission(request, obj) or obj is None
        address = "address" if may_change else "goes_to"
        shown = ["name", "kind", address, "least_severity", "is_active"]
        return [*shown, "last_message"] if obj else shown

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["goes_to", "last_message"]

    def formfield_for_dbfield(self, db_field: Any, request: Any, **options: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **options)
        if db_field.name == "address" and field is not None:
            field.help_text = ADDRESS
            field.widget.attrs["rows"] = 2
        return field

    @admin.display(description="goes to")
    def goes_to(self, channel: Channel) -> str:
        if channel.kind not in POSTED:
            return channel.address or NOTHING
        try:
            host = urlsplit(channel.address).hostname
        except ValueError:
            host = None
        return f"{host}/…" if host else NOTHING

    @admin.display(description="last message")
    def last_message(self, channel: Any) -> str:
        if channel.last_state is None:
            return "none yet"
        error = f": {channel.last_error}" if channel.last_error else ""
        return WORDS[channel.last_state] + error

    @admin.action(description="Send a test", permissions=["change"])
    def send_test(self, request: HttpRequest, channels: QuerySet[Channel]) -> None:
        """At once and to the end, unless the request is one transaction."""
        now = timezone.now()
        for channel in channels:
            row = outbox.trial(channel, who(request), now)
            if get_connection(row._state.db).in_atomic_block:
                self.message_user(request, f"{channel}: the test will be sent soon.")
            elif outbox.deliver_one(row, now):
                self.message_user(request, f"{channel}: the test was sent.", messages.SUCCESS)
            else:
                row.refresh_from_db()
                text = f"{channel}: the test was not sent: {row.error or 'it is on its way'}."
                self.message_user(request, text, messages.ERROR)

    @admin.action(description="Show the secret of a webhook", permissions=["change"])
    def show_secret(self, request: HttpRequest, channels: QuerySet[Channel]) -> HttpResponse | None:
        return self._secrets(request, channels, "its secret was shown")

    @admin.action(description="Make a new secret; the old is void at once", permissions=["change"])
    def rotate_secret(
        self, request: HttpRequest, channels: QuerySet[Channel]
    ) -> HttpResponse | None:
        for channel in channels.filter(kind=KINDS.WEBHOOK):
            Channel.objects.filter(pk=channel.pk).update(secret=new_secret())
        return self._secrets(request, channels, "it has a new secret")

    def _secrets(
        self, request: HttpRequest, channels: QuerySet[Channel], noted: str
    ) -> HttpResponse | None:
        signed = list(channels.filter(kind=KINDS.WEBHOOK))
        if not signed:
            self.message_user(request, "Only webhooks are signed.", messages.WARNING)
            return None
        for channel in signed:
            self.log_change(request, channel, noted)
        title = "Secrets of webhooks"
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "original": title,
            "opts": self.opts,
            "has_view_permission": True,
            "media": self.media,
            "channels": signed,
        }
        return render(request, "admin/token_allowance/channel/secret.html", context)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    list_display = ["created_at", "subject", "channel", "state_shown", "attempts", "error"]
    list_filter = ["state", "channel", "event"]
    sortable_by = []
    ordering = ["-id"]
    actions = ["send_again"]
    fields = (
        ("channel", "event", "alert"), ("state_shown", "attempts", "error"),
        ("created_at", "next_at", "sent_at"), "message", "as_fields",
    )  # fmt: skip
    readonly_fields = ["subject", "state_shown", "message", "as_fields"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        deliveries: QuerySet[Any] = super().get_queryset(request).select_related("channel")
        return deliveries

    def has_resend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("token_allowance.change_delivery")

    @admin.display(description="message")
    def subject(self, delivery: Delivery) -> str:
        return wording.subject(delivery.payload)

    @admin.display(description="state")
    def state_shown(self, delivery: Delivery) -> str:
        waits = delivery.state == STATES.PENDING and delivery.attempts
        again = f", again {timezone.localtime(delivery.next_at):%H:%M:%S}" if waits else ""
        return WORDS[STATES(delivery.state)] + again

    @admin.display(description="as text")
    def message(self, delivery: Delivery) -> Shown:
        return format_html(
            '<pre class="message" tabindex="0">{}</pre>', wording.text(delivery.payload)
        )

    @admin.display(description="as fields")
    def as_fields(self, delivery: Delivery) -> Shown:
        text = json.dumps(delivery.payload, indent=2, ensure_ascii=False)
        return format_html('<pre class="message" tabindex="0">{}</pre>', text)

    @admin.action(description="Send again, as it is", permissions=["resend"])
    def send_again(self, request: HttpRequest, deliveries: QuerySet[Delivery]) -> None:
        chosen = list(deliveries)
        count = outbox.again(Delivery.objects.filter(pk__in=[d.pk for d in chosen]), timezone.now())
        outbox.hurry()
        left = len(chosen) - count
        still = f" {left} were on their way already." if left else ""
        self.message_user(request, f"{count} will be sent again.{still}")


def who(request: HttpRequest) -> str:
    return str(request.user.get_username())
