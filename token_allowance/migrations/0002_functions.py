from __future__ import annotations

from django.db import migrations

from token_allowance.schema import InstallSQL


class Migration(migrations.Migration):
    dependencies = [("token_allowance", "0001_initial")]

    operations = [InstallSQL("postgresql"), InstallSQL("sqlite")]
