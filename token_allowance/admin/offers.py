"""Keys offered while one is typed: the browser's own list, so that no script is needed."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance.admin.scopes import ScopeWidget
from token_allowance.models import Tenant

TENANTS = "known-tenants"  # the id of the list, for other inputs of the page
MOST = 500  # any other key can be typed: a tenant needs no row


class TenantWidget(ScopeWidget):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.widgets[1].attrs["list"] = TENANTS

    def render(self, *args: Any, **options: Any) -> SafeString:
        """The choice, the value, and the list of active tenants that its input offers."""
        tenants = Tenant.objects.filter(is_active=True).values_list("key", "name")[:MOST]
        offered = format_html_join("", '<option value="{}">{}</option>', tenants)
        inputs = super().render(*args, **options)
        return format_html('{}<datalist id="{}">{}</datalist>', inputs, TENANTS, offered)
