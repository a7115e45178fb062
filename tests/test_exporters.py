"""Exporters: what a monitoring system is given of the calls that a process has made."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest
from django.test import RequestFactory
from django.urls import path
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from project.provider import Reply
from tests.metering import GPT, Lab, micros
from token_allowance import allowance, conf, exporters, metrics
from token_allowance.exceptions import AllowanceExceeded, StoreUnavailable
from token_allowance.exporters import opentelemetry, prometheus
from token_allowance.models import Limit, Reservation

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


@pytest.fixture
def followed():
    """Lets an exporter follow for the length of a test."""
    added = []

    def follow(exporter):
        metrics.follow(exporter)
        added.append(exporter)
        return exporter

    yield follow
    for exporter in added:
        metrics.unfollow(exporter)


def prometheus_samples(registry):
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


def otel_points(reader):
    data = reader.get_metrics_data()
    return {
        (metric.name, *sorted(point.attributes.items())): point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_prometheus_is_given_calls_tokens_cost_and_refusals(lab, followed):
    registry = CollectorRegistry()
    followed(prometheus.Prometheus(registry))
    lab.provider.script([Reply(text="one", input_tokens=20, output_tokens=5)])
    lab.ask("openai")
    Limit.objects.create(unit="calls", amount=1)
    with pytest.raises(AllowanceExceeded):
        lab.ask("openai")
    found = prometheus_samples(registry)
    openai = ("provider", "openai")
    assert found["token_allowance_calls_total", openai, ("state", "settled")] == 1
    assert found["token_allowance_cost_micros_total", openai] == micros("openai", 20, 5)
    assert found["token_allowance_input_tokens_total", openai] == 20
    assert found["token_allowance_output_tokens_total", openai] == 5
    assert found["token_allowance_calls_refused_total", ("code", "exhausted"), openai] == 1
    assert found["token_allowance_call_seconds_count", ("model", GPT), openai] == 1
    assert found["token_allowance_reserve_seconds_count", ("outcome", "admitted")] == 1
    assert found["token_allowance_reserve_seconds_count", ("outcome", "AllowanceExceeded")] == 1


def test_prometheus_is_given_estimates_and_overage(lab, followed):
    registry = CollectorRegistry()
    followed(prometheus.Prometheus(registry))
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=1) as call:
        call.record(allowance.Usage(input_tokens=2_000, output_tokens=1))
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=1):
        pass
    found = prometheus_samples(registry)
    openai = ("provider", "openai")
    above = micros("openai", 2_000, 1) - micros("openai", 9, 1)
    assert found["token_allowance_overage_micros_total", openai] == above
    assert found["token_allowance_estimated_micros_total", openai] == micros("openai", 9, 1)
    assert found["token_allowance_calls_flagged_total", ("flag", "estimated"), openai] == 1


def test_opentelemetry_is_given_the_names_of_the_conventions(lab, followed):
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    followed(opentelemetry.OpenTelemetry(meter))
    lab.provider.script([Reply(text="one", input_tokens=20, output_tokens=5)])
    lab.ask("openai")
    points = otel_points(reader)
    call = (
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", GPT),
    )
    given = points["gen_ai.client.token.usage", *call, ("gen_ai.token.type", "input")]
    assert (given.sum, given.count) == (20, 1)
    taken = points["gen_ai.client.token.usage", *call, ("gen_ai.token.type", "output")]
    assert (taken.sum, taken.count) == (5, 1)
    assert points["gen_ai.client.operation.duration", *call].count == 1
    cost = points["token_allowance.cost", ("gen_ai.provider.name", "openai")]
    assert cost.value == micros("openai", 20, 5)
    assert points["token_allowance.reserve.duration", ("outcome", "admitted")].count == 1


def test_no_exporter_names_a_person_a_tenant_or_a_model_without_a_price(lab, followed):
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    followed(prometheus.Prometheus(registry))
    followed(opentelemetry.OpenTelemetry(MeterProvider([reader]).get_meter("test")))
    Limit.objects.all().delete()
    with allowance.charge_to(tenant="acme", user="u_8812", session="s_77"):
        lab.ask("openai", model="gpt-secret-name")
    said = generate_latest(registry).decode() + repr(reader.get_metrics_data().to_json())
    assert "unpriced" in said
    for name in ("acme", "u_8812", "s_77", "gpt-secret-name"):
        assert name not in said


def scraped(settings, rf=None, token=None, **made):
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = RequestFactory().get("/metrics/", headers=headers)
    return prometheus.MetricsView.as_view(**made)(request)


def test_the_address_to_scrape_wants_its_token(settings, db):
    settings.TOKEN_ALLOWANCE = {"METRICS_TOKEN": "s3cret"}
    answer = scraped(settings, token="s3cret")
    assert answer.status_code == 200
    assert b"token_allowance_store_up 1.0" in answer.content
    assert scraped(settings, token="wrong").status_code == 403
    assert scraped(settings).status_code == 403


def test_without_a_token_only_a_public_address_answers(settings, db):
    refused = scraped(settings, token="None")
    assert refused.status_code == 403
    assert b"METRICS_TOKEN" in refused.content
    assert scraped(settings, public=True).status_code == 200


def test_a_scrape_while_the_store_is_down_says_so(settings, db, monkeypatch):
    def down():
        raise StoreUnavailable("no store")

    monkeypatch.setattr(conf.store(), "behind_seconds", down)
    answer = scraped(settings, public=True)
    assert answer.status_code == 200
    assert b"token_allowance_store_up 0.0" in answer.content


@pytest.mark.parametrize("name", conf.EXPORTERS)
def test_a_missing_package_says_what_to_install(name):
    hidden = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}[name]
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "from token_allowance import exporters\n"
        f"exporters.connect([{name!r}])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"pip install 'token-allowance[{name}]'" in ran.stderr


def test_an_unknown_exporter_is_a_check_error():
    (found,) = conf.problems({"METRICS": ["statsd"]})
    assert "prometheus and opentelemetry" in found


class Broken:
    """An exporter whose disk is full, or whose own code is wrong."""

    def add(self, counted):
        raise OSError("no space left on device")

    def measure(self, measured):
        raise OSError("no space left on device")


def test_an_exporter_that_fails_harms_no_call(lab, followed, caplog):
    followed(Broken())
    registry = CollectorRegistry()
    followed(prometheus.Prometheus(registry))
    lab.provider.script([Reply(text="one", input_tokens=20, output_tokens=5)])
    assert lab.ask("openai")
    assert [row.state for row in Reservation.objects.all()] == ["settled"]
    Limit.objects.create(unit="calls", amount=1)
    with pytest.raises(AllowanceExceeded):
        lab.ask("openai")
    found = prometheus_samples(registry)
    assert found["token_allowance_calls_total", ("provider", "openai"), ("state", "settled")] == 1
    assert [r.message for r in caplog.records if "Broken" in r.message], "nobody is told"


def test_the_exporters_follow_once_however_often_they_are_connected():
    exporters.connect(["prometheus"])
    exporters.connect(["prometheus"])
    followed = [one for one in metrics._exporters if isinstance(one, prometheus.Prometheus)]
    assert len(followed) == 1
    metrics.unfollow(followed[0])


WORKER = """
import os, django
from django.conf import settings
settings.configure(INSTALLED_APPS=["token_allowance"], TOKEN_ALLOWANCE={"METRICS": ["prometheus"]})
django.setup()
from token_allowance import metrics
metrics.count(metrics.CALLS_FINISHED, 3, provider="openai", state="settled")
"""


def test_what_several_processes_have_counted_is_one_sum(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", WORKER], check=True, timeout=60)
    registry = CollectorRegistry()
    from prometheus_client import multiprocess

    multiprocess.MultiProcessCollector(registry)
    said = generate_latest(registry).decode()
    assert 'token_allowance_calls_total{provider="openai",state="settled"} 6.0' in said


urlpatterns = [path("metrics/", prometheus.MetricsView.as_view(public=True))]


@pytest.mark.urls(__name__)
def test_a_real_scrape_over_http(live_server):
    with urllib.request.urlopen(f"{live_server.url}/metrics/", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert any(family.name == "token_allowance_store_up" for family in families)
