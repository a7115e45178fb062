"""Telling the store that the policy is about to change, and that it has (protocol A).

Stores that read the version where it is written need no word; one that keeps a copy of it does, so
that the very next reserve obeys. It finds out by itself within two seconds what is written without
these signals, by ``update()`` or by hand, or by a writer that dies.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models.signals import post_delete, post_save, pre_delete, pre_save

from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable

logger = logging.getLogger("token_allowance")
POLICY = ("DegradeRule", "Limit", "LimitIncrease", "ModelAlias", "Price", "Switch", "Tenant")


def connect() -> None:
    """Announce what is saved or deleted through models, in the admin for one."""
    for model in map(apps.get_app_config("token_allowance").get_model, POLICY):
        uid = f"token_allowance.{model.__name__}"
        pre_save.connect(_before, sender=model, dispatch_uid=f"{uid}.pre_save")
        pre_delete.connect(_before, sender=model, dispatch_uid=f"{uid}.pre_delete")
        post_save.connect(_after, sender=model, dispatch_uid=f"{uid}.post_save")
        post_delete.connect(_after, sender=model, dispatch_uid=f"{uid}.post_delete")


def changing() -> None:
    """To be called before a policy write commits."""
    _tell("changing")


def changed() -> None:
    """To be called once it has."""
    _tell("changed")


def _before(**_: Any) -> None:
    changing()


def _after(using: str, **_: Any) -> None:
    transaction.on_commit(partial(_tell, "changed"), using=using, robust=True)


def _tell(what: str) -> None:
    try:
        getattr(conf.store(), what)()
    except StoreUnavailable:
        logger.warning("token_allowance: the store is not told of a change; it finds out in 2 s")
