"""Tests metrics: the numbers of a page equal the counters, and the text format, HTTP and OpenTelemetry
work. Docs, dashboard and alerts use existing names.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import kvpool
from kvpool import CacheManager
from kvpool.errors import ArgumentTypeError, InvalidArgumentError, MissingPackageError, TimeBackwardsError
from kvpool.metrics import CATALOGUE, Metrics
from kvpool.metrics.aliases import ALIASES
from kvpool.store import Arena, Disk, Namespace, Store
from tests.test_store import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

parse_openmetrics: Any = openmetrics.text_string_to_metric_families
DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = (DOCS / "metrics.md").read_text(encoding="utf-8")
NAMES = {definition.name: definition for definition in CATALOGUE}
NAMESPACE = Namespace(
    model="m",
    weights="w",
    kv_dtype="bf16",
    scales="",
    block_size=4,
    layouts=[(0, "LKNHD", [1, 2, 4, 1, 8], [64, 32, 8, 8, 1])],
    layers=(0, 1),
    heads=(0, 1),
    hash_algorithm="sha256",
    hash_seed=b"",
    extra={},
)


def everything() -> CacheManager:
    """Returns a manager that has every kind of metric."""
    return CacheManager(
        48, 4, host_blocks=24, retention=True, advisor=True, explain=True, metrics=True, watermark=0.05
    )


class Traffic:
    """A sequence of random calls on a manager, with a few prompts."""

    def __init__(self, manager: CacheManager, seed: int) -> None:
        self.manager, self.draw = manager, random.Random(seed)
        self.running: list[int] = []
        self.number, self.now = 0, 0.0

    def step(self) -> None:
        manager, draw = self.manager, self.draw
        self.now += draw.random() * 20
        manager.clock.advance(self.now)
        kind = draw.randrange(8)
        if kind == 0 and self.running:
            manager.release(self.running.pop(draw.randrange(len(self.running))))
        elif kind == 1 and self.running:
            one = self.running[-1]
            manager.preempt(one)
            with contextlib.suppress(kvpool.errors.OutOfBlocksError):
                manager.resume(one)
                manager.commit(one, manager.request(one).tokens)
                return
            manager.release(self.running.pop())
        elif kind == 2 and self.running:
            with contextlib.suppress(kvpool.errors.OutOfBlocksError):
                swap = manager.swaps.begin_out([self.running[0]])
                manager.take_plan()
                manager.swaps.complete(swap)
                manager.release(self.running.pop(0))
        else:
            self.admit()

    def admit(self) -> None:
        draw, self.number = self.draw, self.number + 1
        family = draw.randrange(6)
        prompt = [family] * draw.randrange(1, 12) + [draw.randrange(3)] * draw.randrange(1, 12)
        ttl = draw.choice([None, None, 30.0])
        ranges = (
            [(0, None, kvpool.Retention(draw.choice([10, 35, 80]), ttl=ttl))] if draw.random() < 0.3 else None
        )
        try:
            self.manager.admit(self.number, prompt, tenant=family % 3, retention=ranges)
        except kvpool.errors.OutOfBlocksError:
            if self.running:
                self.manager.release(self.running.pop(0))
            return
        self.manager.commit(self.number, len(prompt))
        self.running.append(self.number)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    arena = Arena(slots=4, slot_bytes=4096)
    disk = Disk(tmp_path / "kv", capacity_bytes=1 << 20, free_floor_bytes=0, direct=False)
    with Store(disk, arena, NAMESPACE, **PATIENT) as store:
        arena.write(0, b"KV" * 2048)
        store.put([b"one"], [0])
        store.wait(60)
        store.get([b"one", b"another"], [1, 2])
        store.wait(60)
        yield store


def samples_of(page: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Returns the values of a page by name and labels. Each pair of name and labels may occur only
    once.
    """
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse_openmetrics(page):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), (sample.name, labels)
            found[sample.name][labels] = sample.value
    return found


def total(samples: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str, **where: str) -> float:
    rows = samples.get(name, {}).items()
    return sum(value for labels, value in rows if all((one, said) in labels for one, said in where.items()))


@pytest.mark.parametrize("seed", range(4))
def test_a_page_says_what_is_counted(seed: int) -> None:
    """Checks sums that hold at any time. Also checks that counters never decrease."""
    manager = everything()
    traffic, metrics = Traffic(manager, seed), Metrics()
    metrics.add("main", manager)
    before: dict[str, Any] = {}
    for _ in range(25):
        for _ in range(12):
            traffic.step()
        page, stats = samples_of(metrics.render()), manager.stats()
        for tier, pool in (("device", stats.pool), ("host", manager.swaps.host_stats())):
            assert pool is not None
            assert (
                total(page, "kvpool_blocks", tier=tier)
                == pool.usable
                == total(page, "kvpool_capacity_blocks", tier=tier)
            )
            assert total(page, "kvpool_evicted_blocks_total", tier=tier) == pool.evicted
            assert total(page, "kvpool_hit_blocks_total", tier=tier) == pool.hits
            hits = total(page, "kvpool_block_age_at_hit_seconds_count", tier=tier)
            assert hits == total(page, "kvpool_block_reuse_gap_seconds_count", tier=tier)
        assert page["kvpool_poisoned"] == {(("pool", "main"),): 0}
        assert total(page, "kvpool_tenant_hit_blocks_total") == stats.pool.hits
        assert total(page, "kvpool_tenant_miss_blocks_total") == stats.pool.misses
        assert total(page, "kvpool_missed_tokens_total") == stats.computed_tokens
        prompts = sum(total(page, f"kvpool_{part}_tokens_total") for part in ("hit", "external", "computed"))
        assert prompts == total(page, "kvpool_prompt_tokens_total") == stats.prompt_tokens
        assert total(page, "kvpool_requests") == len(traffic.running) + stats.swapped
        for name, rows in page.items():
            if name.endswith(("_total", "_bucket", "_count", "_sum")):
                assert all(rows[labels] >= value for labels, value in before.get(name, {}).items()), name
        before = page
    assert total(before, "kvpool_evicted_blocks_total", tier="device") > 20
    assert total(before, "kvpool_swapped_requests_total", direction="out") > 0
    assert total(before, "kvpool_expired_retentions_total") > 0


def test_ages_are_on_the_callers_clock() -> None:
    manager = CacheManager(16, 4, metrics=True)
    metrics = Metrics()
    metrics.add("main", manager)
    manager.admit("a", range(9))
    manager.commit("a", 9)
    manager.clock.observe(50.0)
    manager.admit("b", range(9))  # older than the clock
    manager.commit("b", 9)
    manager.admit("c", range(100, 109))
    manager.commit("c", 9)
    manager.clock.observe(53.5)
    manager.admit("d", range(100, 109))
    page = samples_of(metrics.render())
    name = "kvpool_block_age_at_hit_seconds"
    assert (total(page, f"{name}_count"), total(page, f"{name}_sum")) == (2, 7.0)
    assert (total(page, f"{name}_bucket", le="3.0"), total(page, f"{name}_bucket", le="10.0")) == (0, 2)
    assert total(page, "kvpool_hit_blocks_total") == 4
    with pytest.raises(TimeBackwardsError, match=r"53\.5"):
        manager.clock.observe(50.0)
    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidArgumentError):
            manager.clock.observe(bad)


def test_without_metrics_only_what_was_counted_anyway() -> None:
    manager, metrics = CacheManager(16, 4), Metrics()
    metrics.add("main", manager)
    assert manager.diagnose.metrics() == []
    manager.clock.observe(5.0)
    with pytest.raises(TimeBackwardsError):
        manager.clock.observe(4.0)
    page = samples_of(metrics.render())
    assert page["kvpool_evicted_blocks_total"] == {
        (("cause", "unknown"), ("pool", "main"), ("tier", "device")): 0
    }
    assert not [
        name for name in page if "_age_" in name or "tenant" in name or "advice" in name or "missed" in name
    ]


def test_the_engines_names_say_the_same(store: Store) -> None:
    manager = everything()
    traffic = Traffic(manager, 1)
    for _ in range(100):
        traffic.step()
    metrics = Metrics(also=("vllm", "sglang", "vllm"))
    metrics.add("main", manager)
    metrics.add("disk", store)
    page = samples_of(metrics.render())
    stats = manager.stats()
    assert total(page, "vllm:prefix_cache_queries_total") == stats.prompt_tokens
    assert total(page, "vllm:prefix_cache_hits_total") == stats.hit_tokens
    assert total(page, "vllm:kv_cache_usage_perc") == stats.pool.usage
    lifetimes = total(page, "kvpool_block_lifetime_seconds_count", tier="device")
    assert total(page, "vllm:kv_block_lifetime_seconds_count") == lifetimes > 0
    assert total(page, "sglang:cached_tokens_total", cache_source="device") == stats.hit_tokens
    tokens = [total(page, f"sglang:kv_{kind}_tokens") for kind in ("used", "available", "evictable")]
    assert tokens == [4 * blocks for blocks in (stats.pool.active, stats.pool.free, stats.pool.cached_free)]
    for aliases in ALIASES.values():
        for alias in aliases:
            assert alias.of in NAMES
            assert f"{alias.name}_total" in page or alias.name in page or f"{alias.name}_count" in page
            assert alias.name in PAGE


def test_labels_and_names() -> None:
    manager = CacheManager(16, 4)
    metrics = Metrics(labels={"rank": "3", "model": 'a "b"\n'})
    metrics.add("main", manager)
    metrics.add("main", manager)  # the same source again
    with pytest.raises(InvalidArgumentError, match="'main' is taken"):
        metrics.add("main", CacheManager(16, 4))
    with pytest.raises(ArgumentTypeError, match="'x' is a dict"):
        metrics.add("x", {})  # type: ignore[arg-type]
    page = samples_of(metrics.render())
    assert all(("rank", "3") in labels for rows in page.values() for labels in rows)
    assert all(("model", 'a "b"\n') in labels for rows in page.values() for labels in rows)
    metrics.remove("main")
    metrics.remove("main")
    assert set(samples_of(metrics.render())) == {"kvpool_build_info"}
    for label in ("tier", "le", "0x", "__name__", "a-b", ""):
        with pytest.raises(InvalidArgumentError, match="must be a name"):
            Metrics(labels={label: "1"})
    with pytest.raises(InvalidArgumentError, match="trt"):
        Metrics(also=("trt",))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="html"):
        metrics.render("html")  # type: ignore[arg-type]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    metrics.add("main", CacheManager(16, 4))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for call in (metrics.render, lambda: metrics.start_http(0)):
        with pytest.raises(MissingPackageError, match=r"pip install 'kvpool\[metrics\]'"):
            call()
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingPackageError, match="opentelemetry-api"):
        metrics.observe(None)
    assert metrics.collect().values["kvpool_capacity_blocks"] == [(("main", "device"), 15)]


def full_page(store: Store) -> str:
    """Returns a page that contains every metric."""
    manager = everything()
    traffic = Traffic(manager, 3)
    for _ in range(300):
        traffic.step()
    metrics = Metrics(also=("vllm", "sglang"))
    metrics.add("main", manager)
    metrics.add("disk", store)
    return metrics.render()


def test_the_page_is_openmetrics(store: Store) -> None:
    """The page follows the rules of the strict OpenMetrics parser and of ``promtool check metrics``."""
    page = full_page(store)
    assert page.endswith("# EOF\n")
    families = list(parse_openmetrics(page))
    assert len(families) == len({family.name for family in families})
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert family.type in {"counter", "gauge", "histogram", "info"}
        assert not re.search(r"_(counter|gauge|histogram|metric|total|count|sum|bucket)$", family.name), (
            family.name
        )
        assert not family.unit or family.name.endswith(f"_{family.unit}"), family.name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)$", family.name)
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        if family.type == "histogram":
            check_histogram(family.samples, family.name)
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) == 1, family.name


def check_histogram(samples: list[Any], name: str) -> None:
    by_labels: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
    for sample in samples:
        key = frozenset((label, value) for label, value in sample.labels.items() if label != "le")
        parts = by_labels.setdefault(key, {"buckets": []})
        if sample.name == f"{name}_bucket":
            parts["buckets"].append((float(sample.labels["le"]), sample.value))
        else:
            parts[sample.name.removeprefix(f"{name}_")] = sample.value
    for parts in by_labels.values():
        ends, counts = zip(*parts["buckets"], strict=True)
        assert list(ends) == sorted(ends)
        assert ends[-1] == math.inf
        assert list(counts) == sorted(counts)
        assert counts[-1] == parts["count"]
        assert parts["sum"] >= 0


def test_every_metric_is_on_a_full_page_and_documented(store: Store) -> None:
    found = {family.name: family for family in parse_openmetrics(full_page(store))}
    assert {name for name in found if name.startswith("kvpool_")} - {"kvpool_build"} == set(NAMES)
    for name, definition in NAMES.items():
        family = found[name]
        assert (family.type, family.unit, family.documentation) == (
            definition.kind,
            definition.unit,
            definition.help,
        )
        assert set(family.samples[0].labels) - {"le"} == set(definition.labels)
    listed = PAGE.partition("<!-- metrics -->\n")[2].partition("<!-- /metrics -->")[0]
    entries = [" ".join(entry.split()) for entry in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]]
    for one, entry in zip(CATALOGUE, entries, strict=True):
        kind = f"{one.kind}, {one.unit}" if one.unit else one.kind
        assert entry == f"`{one.sample}` ({kind}; {', '.join(one.labels)}): {one.help}"


def get(url: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_http_serves_both_formats_on_this_machine_alone() -> None:
    metrics = Metrics(also=("vllm",))
    metrics.add("main", CacheManager(16, 4, metrics=True))
    with metrics.start_http(0) as server, metrics.start_http(0) as other:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.port != other.port
        kind, page = get(
            server.url, "application/openmetrics-text; version=1.0.0; escaping=underscores,text/plain"
        )
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert page == metrics.render()
        kind, page = get(other.url)
        assert kind.startswith("text/plain; version=0.0.4")
        assert page == metrics.render("prometheus")
        names = {sample.name for family in parse_text(page) for sample in family.samples}
        assert {"vllm:num_preemptions_total", "kvpool_block_lifetime_seconds_bucket"} <= names
        with pytest.raises(OSError, match="in use"):
            metrics.start_http(server.port)
    other.close()
    with pytest.raises(OSError, match="refused"):
        get(server.url)


def test_pages_while_a_scheduler_works() -> None:
    manager = everything()
    traffic, metrics, done = Traffic(manager, 5), Metrics(), threading.Event()
    metrics.add("main", manager)
    pages: list[str] = []

    def read(url: str) -> None:
        while not done.is_set():
            pages.append(get(url, "application/openmetrics-text")[1])

    with metrics.start_http(0) as server:
        readers = [threading.Thread(target=read, args=(server.url,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        while len(pages) < 6:
            traffic.step()
        done.set()
        for reader in readers:
            reader.join()
    admissions = [total(samples_of(page), "kvpool_admissions_total") for page in pages]
    assert max(admissions) <= manager.stats().admissions


def test_opentelemetry_reads_the_same(store: Store) -> None:
    manager = everything()
    traffic = Traffic(manager, 7)
    for _ in range(200):
        traffic.step()
    metrics = Metrics(labels={"rank": "0"})
    metrics.add("main", manager)
    metrics.add("disk", store)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    metrics.observe(provider.get_meter("kvpool"))
    page = samples_of(metrics.render())
    data = reader.get_metrics_data()
    assert data is not None
    seen = set()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        name = metric.name if metric.name in page else f"{metric.name}_total"
        points: list[Any] = list(metric.data.data_points)
        told = {
            tuple(sorted((label, str(said)) for label, said in one.attributes.items())): one.value
            for one in points
        }
        assert told == page[name], metric.name
        seen.add(name)
    assert seen == set(page) - {"kvpool_build_info"}
    provider.shutdown()


def expressions() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((DOCS / "metrics/kvpool.rules.yml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((DOCS / "metrics/kvpool-dashboard.json").read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(  # type: ignore[union-attr]
                r"label_values\((\w+), (\w+)\)", variable["definition"]
            ).groups()
            yield variable["name"], f"{name}{{{label}!=''}}"


def selectors(node: Any) -> Iterator[Any]:
    """Yields every vector selector (a metric's name with its labels) of a PromQL expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for child in ("expr", "lhs", "rhs", "vector_selector"):
        if hasattr(node, child) and getattr(node, child) is not None:
            yield from selectors(getattr(node, child))
    for argument in getattr(node, "args", None) or []:
        yield from selectors(argument)


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_dashboard_and_alerts_ask_for_what_there_is(where: str, expression: str) -> None:
    """Every expression is valid PromQL. It uses only names and labels that the pages contain."""
    found = list(selectors(promql_parser.parse(expression)))
    assert found, where
    known: dict[str, tuple[str, ...]] = {}
    for one in CATALOGUE:
        ends = ("_bucket", "_count", "_sum") if one.kind == "histogram" else ("",)
        for end in ends:
            known[one.sample + end] = (*one.labels, "le") if end == "_bucket" else one.labels
    for selector in found:
        assert selector.name in known, (where, selector.name)
        for matcher in selector.matchers.matchers:
            assert matcher.name in known[selector.name], (where, selector.name, matcher.name)
    grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
    assert grouped <= {label for selector in found for label in known[selector.name]}, where


def test_every_alert_is_tested_to_fire_and_not_to() -> None:
    """``make dashboard-check`` runs these cases with ``promtool test rules``."""
    rules = yaml.safe_load((DOCS / "metrics/kvpool.rules.yml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((DOCS.parent / "tools/dashboard/rules_test.yml").read_text(encoding="utf-8"))
    cases = [case for test in tests["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts
