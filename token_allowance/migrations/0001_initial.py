from __future__ import annotations

import django.db.models.deletion
import django.db.models.expressions
import django.utils.timezone
import token_allowance.models.channels
import token_allowance.models.fields
import token_allowance.models.limits
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AlertRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("budget", "a budget reaches 70, 90 or 100 percent"),
                            ("forecast", "a budget will be spent before its window ends"),
                            ("spend_rate", "spending far above what is usual at this time"),
                            ("tokens_per_request", "requests far longer than is usual"),
                            ("requests_per_user", "one user calls too often"),
                            ("unpriced", "a model without a price is used"),
                            ("estimated", "too much is charged by estimate"),
                            ("store_down", "the store cannot be asked, or the ledger is behind"),
                            ("expired", "reservations end without a word"),
                            ("drill_overdue", "the kill switch was not drilled lately"),
                            ("silent", "the ledger is silent"),
                            ("switch", "a kill switch was pulled or released"),
                            ("channel", "a message could not be delivered"),
                        ],
                        max_length=20,
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "severity",
                    models.CharField(
                        choices=[
                            ("info", "information"),
                            ("warning", "warning"),
                            ("critical", "critical"),
                        ],
                        default="warning",
                        max_length=8,
                    ),
                ),
                (
                    "threshold",
                    models.DecimalField(blank=True, decimal_places=4, max_digits=18, null=True),
                ),
                ("minutes", models.PositiveIntegerField(blank=True, null=True)),
                ("is_active", models.BooleanField(default=True)),
                ("evaluated_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("error", models.CharField(blank=True, default="", editable=False, max_length=300)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Channel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("email", "e-mail"),
                            ("slack", "Slack, or what takes the same"),
                            ("webhook", "webhook, signed"),
                            ("signal", "Python signal alert_sent"),
                        ],
                        max_length=8,
                    ),
                ),
                ("address", models.TextField(blank=True, default="")),
                (
                    "secret",
                    models.CharField(
                        default=token_allowance.models.channels.new_secret,
                        editable=False,
                        max_length=100,
                    ),
                ),
                (
                    "least_severity",
                    models.CharField(
                        choices=[
                            ("info", "information"),
                            ("warning", "warning"),
                            ("critical", "critical"),
                        ],
                        default="info",
                        max_length=8,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Drill",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("percent", models.PositiveSmallIntegerField(default=100)),
                ("processes", models.PositiveSmallIntegerField()),
                ("by", models.CharField(max_length=200)),
                ("started_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("slo_ms", models.PositiveIntegerField()),
                ("effect_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("last_admission_ms", models.PositiveIntegerField(blank=True, null=True)),
                ("calls", models.PositiveIntegerField(default=0)),
                ("admitted_after", models.PositiveIntegerField(default=0)),
                ("callers", models.PositiveIntegerField(default=0)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("codes", models.JSONField(blank=True, default=dict)),
                ("passed", models.BooleanField(null=True)),
                ("error", models.CharField(blank=True, default="", max_length=500)),
            ],
            options={
                "ordering": ["-started_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="LimitRevision",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("limit_id", models.BigIntegerField(db_index=True)),
                ("scope", models.CharField(max_length=500)),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("by", models.CharField(max_length=200)),
                ("source", models.CharField(max_length=20)),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("before", models.JSONField(default=dict)),
                ("after", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name": "revision of a limit",
                "verbose_name_plural": "revisions of limits",
                "ordering": ["-at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="Mark",
            fields=[
                ("job", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("at", models.DateTimeField(blank=True, null=True)),
                ("number", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="ModelAlias",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=200, unique=True)),
                ("provider", models.CharField(max_length=64)),
                ("model", models.CharField(max_length=200)),
            ],
            options={
                "verbose_name_plural": "model aliases",
                "ordering": ["alias"],
            },
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("prefix", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("watermark", models.CharField(default="0-0", max_length=64)),
                ("epoch", models.BigIntegerField(default=0)),
                ("opened_at", models.DateTimeField(null=True)),
                ("drained_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name_plural": "outboxes",
            },
        ),
        migrations.CreateModel(
            name="PendingSettlement",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("document", models.JSONField()),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="PolicyVersion",
            fields=[
                ("kind", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("number", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Adjustment",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("key", models.TextField()),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("session", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("unit", models.CharField(max_length=8)),
                ("amount", models.BigIntegerField()),
                ("reason", models.CharField(max_length=500)),
                ("by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                "ordering": ["-id"],
                "indexes": [models.Index(fields=["key"], name="allowance_adjustment_key")],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("target", models.TextField()),
                ("window", models.CharField(blank=True, default="", max_length=64)),
                ("rung", models.PositiveSmallIntegerField(default=0)),
                ("amount", models.BigIntegerField(default=0)),
                (
                    "severity",
                    models.CharField(
                        choices=[
                            ("info", "information"),
                            ("warning", "warning"),
                            ("critical", "critical"),
                        ],
                        max_length=8,
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("session", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("title", models.CharField(max_length=300)),
                ("value", models.BigIntegerField(null=True)),
                ("threshold", models.BigIntegerField(null=True)),
                ("unit", models.CharField(blank=True, default="", max_length=16)),
                ("snapshot", models.JSONField(default=dict)),
                ("fired_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("seen_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("acknowledged_by", models.CharField(blank=True, default="", max_length=200)),
                ("muted_until", models.DateTimeField(blank=True, null=True)),
                ("muted_by", models.CharField(blank=True, default="", max_length=200)),
                ("mute_reason", models.CharField(blank=True, default="", max_length=500)),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="alerts",
                        to="token_allowance.alertrule",
                    ),
                ),
            ],
            options={
                "ordering": ["-fired_at", "-id"],
                "permissions": [("acknowledge_alert", "Can acknowledge and mute alerts")],
            },
        ),
        migrations.AddField(
            model_name="alertrule",
            name="channels",
            field=models.ManyToManyField(
                blank=True,
                help_text="None: every channel that takes this severity.",
                to="token_allowance.channel",
            ),
        ),
        migrations.CreateModel(
            name="Counter",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("used", models.BigIntegerField(default=0)),
                ("reserved", models.BigIntegerField(default=0)),
                ("since", models.BigIntegerField(default=0)),
                ("part_of", models.TextField(null=True)),
                ("slice", models.BigIntegerField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("slice__isnull", False)),
                        fields=["part_of", "slice"],
                        name="allowance_counter_slice",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("prefix", models.CharField(max_length=200)),
                ("event_id", models.CharField(max_length=64)),
                ("payload", models.BinaryField()),
                ("error", models.TextField()),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("prefix", "event_id"), name="allowance_dead_letter_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DegradeRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("from_model", models.CharField(max_length=200)),
                ("to_model", models.CharField(blank=True, default="", max_length=200)),
                ("max_output_tokens", models.PositiveIntegerField(blank=True, null=True)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("is_active", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ["from_model", "feature"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("is_active", True)),
                        fields=("from_model", "feature"),
                        name="allowance_degrade_once",
                        violation_error_message="A rule for this model and feature is in force already.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("to_model", ""), _negated=True),
                            ("max_output_tokens__isnull", False),
                            _connector="OR",
                        ),
                        name="allowance_degrade_does_something",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "event",
                    models.CharField(
                        choices=[("fired", "Fired"), ("resolved", "Resolved"), ("test", "Test")],
                        max_length=8,
                    ),
                ),
                ("payload", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("sent", "Sent"), ("failed", "given up")],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("error", models.CharField(blank=True, default="", max_length=300)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("next_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("claimed_until", models.DateTimeField(blank=True, null=True)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                (
                    "alert",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="token_allowance.alert",
                    ),
                ),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="token_allowance.channel",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="HourlySpend",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("provider", models.CharField(blank=True, default="", max_length=64)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("calls", models.BigIntegerField(default=0)),
                ("estimated_calls", models.BigIntegerField(default=0)),
                ("unpriced_calls", models.BigIntegerField(default=0)),
                ("cost_micros", models.BigIntegerField(default=0)),
                ("cost_exact", models.DecimalField(decimal_places=10, default=0, max_digits=28)),
                ("estimated_micros", models.BigIntegerField(default=0)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("cache_read_tokens", models.BigIntegerField(default=0)),
                ("cache_write_tokens", models.BigIntegerField(default=0)),
                ("reasoning_tokens", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name_plural": "hourly spend",
                "permissions": [
                    ("view_dashboard", "Can see the dashboard"),
                    ("export_spend", "Can export spending"),
                ],
                "indexes": [
                    models.Index(fields=["tenant", "starts_at"], name="allowance_spend_tenant")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("starts_at", "tenant", "user", "feature", "provider", "model"),
                        name="allowance_spend_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("session", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("plan", models.CharField(blank=True, default="", max_length=100)),
                (
                    "window",
                    models.CharField(
                        choices=[
                            ("minute", "a minute"),
                            ("hour", "an hour"),
                            ("day", "a day"),
                            ("week", "a week"),
                            ("month", "a month"),
                            ("total", "in total, for ever"),
                            ("rolling", "the last hours or days, at any moment"),
                        ],
                        default="day",
                        max_length=8,
                    ),
                ),
                (
                    "rolling_seconds",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="The length of a rolling window: a minute to 366 days.",
                    ),
                ),
                (
                    "anchor_day",
                    models.PositiveSmallIntegerField(
                        default=1,
                        help_text="Weeks: 1 is Monday. Months: the day on which the month starts.",
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(
                        blank=True,
                        default="",
                        max_length=64,
                        validators=[token_allowance.models.fields.validate_time_zone],
                    ),
                ),
                (
                    "unit",
                    models.CharField(
                        choices=[("cost", "dollars"), ("tokens", "tokens"), ("calls", "calls")],
                        default="cost",
                        max_length=8,
                    ),
                ),
                ("amount", models.BigIntegerField()),
                (
                    "mode",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "as set globally"),
                            ("enforce", "enforce: refuse when spent"),
                            ("observe", "observe: note what would have been refused"),
                        ],
                        default="",
                        max_length=8,
                    ),
                ),
                (
                    "notify_at",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value([70, 90, 100], models.JSONField()),
                        default=token_allowance.models.limits.notify_levels,
                        help_text="Percent used at which to tell: [70, 90, 100].",
                    ),
                ),
                (
                    "degrade_at",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        db_default=90,
                        default=90,
                        help_text="Percent used from which degrade rules act; empty: never.",
                        null=True,
                    ),
                ),
                (
                    "hard_stop_percent",
                    models.PositiveSmallIntegerField(
                        db_default=100,
                        default=100,
                        help_text="Percent used from which calls are refused: 100 to 120.",
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("tracked_since", models.BigIntegerField(default=0, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
            ],
            options={
                "ordering": ["tenant", "user", "session", "feature", "model", "window", "unit"],
                "indexes": [
                    models.Index(fields=["tenant", "user", "session"], name="allowance_limit_of")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount__gte", 0), ("amount__lte", 9007199254740991)),
                        name="allowance_limit_amount_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("plan", ""), ("tenant", "*"), _connector="OR"),
                        name="allowance_limit_plan_needs_each_tenant",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("anchor_day", 1),
                            models.Q(
                                ("anchor_day__gte", 1), ("anchor_day__lte", 7), ("window", "week")
                            ),
                            models.Q(
                                ("anchor_day__gte", 1), ("anchor_day__lte", 31), ("window", "month")
                            ),
                            _connector="OR",
                        ),
                        name="allowance_limit_anchor_day",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "window__in",
                                ["minute", "hour", "day", "week", "month", "total", "rolling"],
                            )
                        ),
                        name="allowance_limit_window",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("rolling_seconds", 0),
                                models.Q(("window", "rolling"), _negated=True),
                            ),
                            models.Q(
                                ("rolling_seconds__gte", 60),
                                ("rolling_seconds__lte", 31622400),
                                ("window", "rolling"),
                            ),
                            _connector="OR",
                        ),
                        name="allowance_limit_rolling_seconds",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("unit__in", ["cost", "tokens", "calls"])),
                        name="allowance_limit_unit",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("hard_stop_percent__gte", 100), ("hard_stop_percent__lte", 120)
                        ),
                        name="allowance_limit_hard_stop",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("degrade_at__isnull", True),
                            models.Q(("degrade_at__gte", 1), ("degrade_at__lte", 120)),
                            _connector="OR",
                        ),
                        name="allowance_limit_degrade_at",
                    ),
                    models.UniqueConstraint(
                        models.F("tenant"),
                        models.F("user"),
                        models.F("session"),
                        models.F("feature"),
                        models.F("model"),
                        models.F("plan"),
                        models.F("window"),
                        models.F("rolling_seconds"),
                        models.F("unit"),
                        condition=models.Q(("is_active", True)),
                        name="allowance_limit_once",
                        violation_error_message="An active limit with this scope, window and unit exists.",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitIncrease",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("amount", models.BigIntegerField()),
                ("until", models.DateTimeField()),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("by", models.CharField(blank=True, max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "limit",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="increases",
                        to="token_allowance.limit",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("provider", models.CharField(max_length=64)),
                ("model", models.CharField(max_length=200)),
                ("effective_from", models.DateTimeField(blank=True, null=True)),
                ("min_input_tokens", models.PositiveIntegerField(default=0)),
                ("service_tier", models.CharField(blank=True, default="", max_length=32)),
                ("input_mtok", models.DecimalField(decimal_places=8, max_digits=16)),
                ("output_mtok", models.DecimalField(decimal_places=8, max_digits=16)),
                (
                    "cache_read_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "cache_write_5m_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "cache_write_1h_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "input_audio_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "output_audio_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "cache_read_audio_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "input_image_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "output_image_mtok",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "web_search_thousand",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "file_search_thousand",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "request_thousand",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "image_each",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "audio_hour",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "character_million",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                (
                    "page_thousand",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=16, null=True),
                ),
                ("source", models.CharField(default="admin", max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
            ],
            options={
                "ordering": [
                    "provider",
                    "model",
                    "-effective_from",
                    "service_tier",
                    "min_input_tokens",
                ],
                "indexes": [
                    models.Index(fields=["model", "provider"], name="allowance_price_model")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("input_mtok__gte", 0),
                                ("input_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("output_mtok__gte", 0),
                                ("output_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("cache_read_mtok__gte", 0),
                                ("cache_read_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("cache_write_5m_mtok__gte", 0),
                                ("cache_write_5m_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("cache_write_1h_mtok__gte", 0),
                                ("cache_write_1h_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("input_audio_mtok__gte", 0),
                                ("input_audio_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("output_audio_mtok__gte", 0),
                                ("output_audio_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("cache_read_audio_mtok__gte", 0),
                                ("cache_read_audio_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("input_image_mtok__gte", 0),
                                ("input_image_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("output_image_mtok__gte", 0),
                                ("output_image_mtok__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("web_search_thousand__gte", 0),
                                ("web_search_thousand__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("file_search_thousand__gte", 0),
                                ("file_search_thousand__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("request_thousand__gte", 0),
                                ("request_thousand__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("image_each__gte", 0),
                                ("image_each__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("audio_hour__gte", 0),
                                ("audio_hour__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("character_million__gte", 0),
                                ("character_million__isnull", True),
                                _connector="OR",
                            ),
                            models.Q(
                                ("page_thousand__gte", 0),
                                ("page_thousand__isnull", True),
                                _connector="OR",
                            ),
                        ),
                        name="allowance_price_not_negative",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("effective_from__isnull", False)),
                        fields=(
                            "provider",
                            "model",
                            "source",
                            "service_tier",
                            "min_input_tokens",
                            "effective_from",
                        ),
                        name="allowance_price_once_dated",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("effective_from__isnull", True)),
                        fields=("provider", "model", "source", "service_tier", "min_input_tokens"),
                        name="allowance_price_once_always",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Refusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("code", models.CharField(max_length=64)),
                ("key", models.TextField(blank=True, default="")),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("provider", models.CharField(blank=True, default="", max_length=64)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("calls", models.BigIntegerField(default=0)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
            ],
            options={
                "ordering": ["-starts_at", "code"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("code", "switch_engaged")),
                        fields=["key", "starts_at"],
                        name="allowance_refusal_switch",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "starts_at",
                            "code",
                            "key",
                            "tenant",
                            "user",
                            "feature",
                            "provider",
                            "model",
                        ),
                        name="allowance_refusal_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("idempotency_key", models.CharField(blank=True, max_length=200)),
                ("trace_id", models.CharField(blank=True, max_length=200)),
                ("run_path", models.TextField(blank=True)),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("session", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("provider", models.CharField(blank=True, max_length=64)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("requested_model", models.CharField(blank=True, max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("reserved", "Reserved"),
                            ("settled", "Settled"),
                            ("released", "Released"),
                            ("expired", "Expired"),
                        ],
                        max_length=8,
                    ),
                ),
                ("flags", models.JSONField(blank=True, default=list)),
                ("reserved_micros", models.BigIntegerField(null=True)),
                ("reserved_tokens", models.BigIntegerField(default=0)),
                ("cost_micros", models.BigIntegerField(null=True)),
                ("cost_exact", models.DecimalField(decimal_places=10, max_digits=28, null=True)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("cache_read_tokens", models.BigIntegerField(default=0)),
                ("cache_write_tokens", models.BigIntegerField(default=0)),
                ("reasoning_tokens", models.BigIntegerField(default=0)),
                ("usage", models.JSONField(blank=True, null=True)),
                ("raw_usage", models.JSONField(blank=True, null=True)),
                ("price", models.JSONField(blank=True, null=True)),
                ("provider_request_id", models.CharField(blank=True, max_length=200)),
                ("deferred_id", models.CharField(blank=True, max_length=200)),
                ("holds", models.JSONField(default=list)),
                ("created_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(blank=True, null=True)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "reservation",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["created_at"], name="allowance_ledger_time"),
                    models.Index(fields=["tenant", "created_at"], name="allowance_ledger_tenant"),
                    models.Index(
                        condition=models.Q(("user", ""), _negated=True),
                        fields=["user", "created_at"],
                        name="allowance_ledger_user",
                    ),
                    models.Index(
                        condition=models.Q(("trace_id", ""), _negated=True),
                        fields=["trace_id"],
                        name="allowance_ledger_trace",
                    ),
                    models.Index(
                        condition=models.Q(("run_path", ""), _negated=True),
                        fields=["run_path"],
                        name="allowance_ledger_run",
                        opclasses=["text_pattern_ops"],
                    ),
                    models.Index(
                        condition=models.Q(("state", "reserved")),
                        fields=["expires_at"],
                        name="allowance_ledger_lease",
                    ),
                    models.Index(
                        condition=models.Q(("settled_at__isnull", False)),
                        fields=["settled_at"],
                        name="allowance_ledger_settled",
                    ),
                    models.Index(
                        condition=models.Q(("provider_request_id", ""), _negated=True),
                        fields=["provider_request_id"],
                        name="allowance_ledger_request",
                    ),
                    models.Index(
                        condition=models.Q(("deferred_id", ""), _negated=True),
                        fields=["deferred_id"],
                        name="allowance_ledger_deferred",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key", ""), _negated=True),
                        fields=("tenant", "idempotency_key"),
                        name="allowance_ledger_idempotent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cost_micros__isnull", True), ("cost_micros__gte", 0), _connector="OR"
                        ),
                        name="allowance_ledger_cost_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("cost_exact__isnull", True),
                            models.Q(
                                ("cost_micros__gte", models.F("cost_exact")),
                                (
                                    "cost_micros__lt",
                                    django.db.models.expressions.CombinedExpression(
                                        models.F("cost_exact"), "+", models.Value(1)
                                    ),
                                ),
                            ),
                            _connector="OR",
                        ),
                        name="allowance_ledger_cost_rounded_up_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Switch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("user", models.CharField(blank=True, default="", max_length=200)),
                ("feature", models.CharField(blank=True, default="", max_length=200)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                (
                    "percent",
                    models.PositiveSmallIntegerField(
                        db_default=100,
                        default=100,
                        help_text="Of the callers it names, always the same ones.",
                    ),
                ),
                (
                    "cuts_streams",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Answers that are being streamed are cut off too.",
                    ),
                ),
                ("reason", models.CharField(max_length=500)),
                ("by", models.CharField(max_length=200)),
                ("engaged_at", models.DateTimeField(default=django.utils.timezone.now)),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                ("released_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "switches",
                "ordering": ["-engaged_at"],
                "permissions": [
                    (
                        "flip_switch",
                        "Can stop and resume calls of a tenant, user, feature or model",
                    ),
                    ("flip_global_switch", "Can stop and resume all calls"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=("tenant", "user", "feature", "model"),
                        name="allowance_switch_engaged_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("percent__gte", 1), ("percent__lte", 100)),
                        name="allowance_switch_percent",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SwitchEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "action",
                    models.CharField(
                        choices=[("engaged", "Engaged"), ("released", "Released")], max_length=8
                    ),
                ),
                ("at", models.DateTimeField(default=django.utils.timezone.now)),
                ("by", models.CharField(max_length=200)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                ("percent", models.PositiveSmallIntegerField(db_default=100, default=100)),
                ("cuts_streams", models.BooleanField(db_default=False, default=False)),
                (
                    "source",
                    models.CharField(blank=True, db_default="", default="", max_length=16),
                ),
                (
                    "switch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="token_allowance.switch",
                    ),
                ),
            ],
            options={
                "ordering": ["at", "id"],
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=200, unique=True)),
                ("name", models.CharField(blank=True, max_length=200)),
                ("plan", models.CharField(blank=True, db_index=True, default="", max_length=100)),
                (
                    "time_zone",
                    models.CharField(
                        blank=True,
                        default="",
                        max_length=64,
                        validators=[token_allowance.models.fields.validate_time_zone],
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "as set globally"),
                            ("enforce", "enforce: refuse when spent"),
                            ("observe", "observe: note what would have been refused"),
                        ],
                        default="",
                        max_length=8,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                ("tracked_since", models.BigIntegerField(default=0, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
            ],
            options={
                "ordering": ["key"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("key__in", ["", "*"]), _negated=True),
                        name="allowance_tenant_key_is_a_value",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("call", models.UUIDField()),
                ("key", models.TextField()),
                ("number", models.BigIntegerField()),
                ("until", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("key", "call"), name="allowance_ticket_once")
                ],
            },
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["target", "fired_at"], name="allowance_alert_target"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("window", ""), _negated=True),
                fields=("rule", "target", "window", "rung", "amount"),
                name="allowance_alert_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("resolved_at__isnull", True), ("window", "")),
                fields=("rule", "target"),
                name="allowance_alert_open_once",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("state", "pending")),
                fields=["next_at"],
                name="allowance_delivery_due",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("alert__isnull", False), models.Q(("event", "test"), _negated=True)
                ),
                fields=("alert", "channel", "event"),
                name="allowance_delivery_once",
            ),
        ),
        migrations.AddIndex(
            model_name="limitincrease",
            index=models.Index(fields=["until"], name="allowance_increase_until"),
        ),
        migrations.AddConstraint(
            model_name="limitincrease",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount__gte", 1), ("amount__lte", 9007199254740991)),
                name="allowance_increase_amount_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="limitincrease",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("tenant", "*"), _negated=True), models.Q(("user", "*"), _negated=True)
                ),
                name="allowance_increase_names_values",
            ),
        ),
    ]
