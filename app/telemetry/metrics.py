"""Prometheus metrics: own names, and the same numbers under vLLM's names for ready dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.contract import HarmTotals
from engine.wire import Failed, Finished, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 1.6)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)


class Metrics:
    """Counts since the start of this process. Seconds everywhere, as Prometheus wants it.

    status: reads the engine's restarts and the writer's dropped records when scraped."""

    def __init__(self, model: str, status: Callable[[], tuple[int, int]]) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter(
            "paceline_requests",
            "Requests ended; error: the code of those whose finish_reason is error.",
            ["model", "finish_reason", "error"],
            registry=registry,
        )
        self._successes = Counter(
            "vllm:request_success",
            "Requests ended without an error.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._prompt_tokens = _counters(
            registry, "prompt_tokens", "Prompt tokens of ended requests.", "prompt_tokens", model
        )
        self._prompt_cached = _counters(
            registry,
            "prompt_tokens_cached",
            "Those prompt tokens of ended requests that the prefix cache held.",
            "prompt_tokens_cached",
            model,
        )
        self._tokens = _counters(
            registry, "generation_tokens", "Output tokens.", "generation_tokens", model
        )
        self._drafts = _counters(
            registry,
            "spec_decode_drafts",
            "Request-steps that verified at least one drafted token.",
            "spec_decode_num_drafts",
            model,
        )
        self._draft_tokens = _counters(
            registry,
            "spec_decode_draft_tokens",
            "Drafted tokens that were verified.",
            "spec_decode_num_draft_tokens",
            model,
        )
        self._accepted_tokens = _counters(
            registry,
            "spec_decode_accepted_tokens",
            "Drafted tokens that were accepted.",
            "spec_decode_num_accepted_tokens",
            model,
        )
        self._accepted_at = _counters(
            registry,
            "spec_decode_accepted_tokens_per_pos",
            "Drafted tokens accepted, by position in the draft.",
            "spec_decode_num_accepted_tokens_per_pos",
            model,
            "position",
        )
        self._preemptions = _counters(
            registry,
            "preemptions",
            "Times that a running request lost its pages and was computed again later.",
            "num_preemptions",
            model,
        )
        self._prefix_queried = _counters(
            registry,
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            "prefix_cache_queries",
            model,
        )
        self._prefix_hits = _counters(
            registry,
            "prefix_cache_hits",
            "Prompt tokens found in the prefix cache.",
            "prefix_cache_hits",
            model,
        )
        self._drafter_steps = Counter(
            "paceline_request_steps",
            "Request-steps by drafter.",
            ["model", "drafter"],
            registry=registry,
        )
        self._drafter_memory, self._drafter_limit, self._drafter_truncated = (
            Gauge(f"paceline_drafter_{name}", text, ["model", "drafter"], registry=registry)
            for name, text in (
                ("memory_bytes", "Memory that a drafter's texts take."),
                ("memory_limit_bytes", "Memory that they may take."),
                ("truncated_texts", "Texts not taken in whole since the engine's start."),
            )
        )
        self._drafter_model = Gauge(
            "paceline_drafter_model_bytes",
            "Memory of a drafter's own model: its weights, its keys and values.",
            ["model", "drafter", "part"],
            registry=registry,
        )
        self._policy = Gauge(
            "paceline_policy",
            "1 for the policy in force and the one that it is compared with, if any.",
            ["model", "policy", "ab_policy"],
            registry=registry,
        )
        self._harm_tokens = Gauge(
            "paceline_harm_ledger_tokens",
            "Tokens committed in the steps of the harm ledger, since the controller's start.",
            ["model"],
            registry=registry,
        )
        self._harm_seconds = Gauge(
            "paceline_harm_ledger_seconds",
            "What they took (real), would have taken without drafts (plain), and at most with the "
            "best drafter at one length (static).",
            ["model", "clock"],
            registry=registry,
        )
        self._running = _gauges(
            registry, "requests_running", "Requests in the batch.", "num_requests_running", model
        )
        self._waiting = _gauges(
            registry, "requests_waiting", "Requests that wait.", "num_requests_waiting", model
        )
        self._kv_usage = _gauges(
            registry, "kv_cache_usage", "KV pages in use, 0 to 1.", "kv_cache_usage_perc", model
        )
        self._ttft = _histograms(
            registry, "time_to_first_token_seconds", "Time to the first token.", LONG_S, model
        )
        self._gap = _histograms(
            registry, "inter_token_latency_seconds", "Gap between stream events.", SHORT_S, model
        )
        self._e2e = _histograms(
            registry, "e2e_request_latency_seconds", "Time of a whole request.", LONG_S, model
        )
        self._model = model
        registry.register(_Status(model, status))

    def observe_snapshot(self, snapshot: Snapshot) -> None:
        """Add one second of the engine."""
        _add(self._tokens, snapshot.tokens)
        _add(self._preemptions, snapshot.preemptions)
        _add(self._prefix_queried, snapshot.prefix_queried_tokens)
        _add(self._prefix_hits, snapshot.prefix_hit_tokens)
        _set(self._running, snapshot.running)
        _set(self._waiting, snapshot.waiting)
        _set(self._kv_usage, 1 - snapshot.free_pages / max(snapshot.total_pages, 1))
        self._policy.clear()
        controller = snapshot.controller
        self._policy.labels(self._model, controller.policy, controller.ab_policy).set(1)
        self._observe_harm(snapshot.harm)
        for drafter in snapshot.drafters:
            if (memory := drafter.memory) is not None:
                labels = (self._model, drafter.name)
                self._drafter_memory.labels(*labels).set(memory.used_bytes)
                self._drafter_limit.labels(*labels).set(memory.limit_bytes)
                self._drafter_truncated.labels(*labels).set(memory.truncated)
            if (own := drafter.model) is not None:
                for part, size in (("weights", own.weights_bytes), ("kv", own.kv_bytes)):
                    self._drafter_model.labels(self._model, drafter.name, part).set(size)
        for cell in snapshot.cells:
            self._drafter_steps.labels(self._model, cell.drafter).inc(cell.request_steps)
            if not cell.draft_length:
                continue
            _add(self._drafts, cell.request_steps)
            _add(self._draft_tokens, cell.drafted)
            _add(self._accepted_tokens, cell.accepted)
            for position, accepted in enumerate(cell.accepted_at):
                _add(self._accepted_at, accepted, str(position))

    def _observe_harm(self, harm: HarmTotals | None) -> None:
        """Nothing is told of a controller that keeps no ledger."""
        self._harm_tokens.clear()
        self._harm_seconds.clear()
        if harm is None:
            return
        self._harm_tokens.labels(self._model).set(harm.tokens)
        clocks = (("real", harm.real_s), ("plain", harm.plain_s), ("static", harm.static_s))
        for clock, seconds in clocks:
            self._harm_seconds.labels(self._model, clock).set(seconds)

    def observe_finished(self, event: Finished | Failed) -> None:
        """Add one ended request."""
        if isinstance(event, Failed):
            self._requests.labels(self._model, "error", event.code).inc()
            return
        reason = event.finish_reason
        self._requests.labels(self._model, reason, "").inc()
        self._successes.labels(self._model, "abort" if reason == "cancelled" else reason).inc()
        _add(self._prompt_tokens, event.prompt_tokens)
        _add(self._prompt_cached, event.cached_tokens)
        if event.completion_tokens:
            _observe(self._ttft, event.timing.ttft_ms / 1000)
        _observe(self._e2e, event.timing.e2e_ms / 1000)

    def observe_gap(self, seconds: float) -> None:
        """Add the time between two stream events of one request."""
        _observe(self._gap, seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Status(Collector):
    """Numbers that live elsewhere and are read when scraped."""

    def __init__(self, model: str, status: Callable[[], tuple[int, int]]) -> None:
        self._model = model
        self._status = status

    def collect(self) -> Iterator[Metric]:
        restarts, dropped = self._status()
        yield CounterMetricFamily(
            "paceline_engine_restarts", "Restarts of the engine process.", value=restarts
        )
        yield CounterMetricFamily(
            "paceline_storage_dropped_records", "Records that no store took.", value=dropped
        )
        yield GaugeMetricFamily("paceline_up", "1 while the process answers.", value=1)


# Those below exist twice: paceline_NAME{model} and vllm:ALIAS{model_name}.


def _counters(
    registry: CollectorRegistry, name: str, text: str, alias: str, model: str, *labels: str
) -> tuple[Counter, Counter, str]:
    own = Counter(f"paceline_{name}", text, ["model", *labels], registry=registry)
    other = Counter(f"vllm:{alias}", text, ["model_name", *labels], registry=registry)
    if not labels:
        own.labels(model)
        other.labels(model)
    return own, other, model


def _gauges(
    registry: CollectorRegistry, name: str, text: str, alias: str, model: str
) -> tuple[Gauge, Gauge]:
    return (
        Gauge(f"paceline_{name}", text, ["model"], registry=registry).labels(model),
        Gauge(f"vllm:{alias}", text, ["model_name"], registry=registry).labels(model),
    )


def _histograms(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...], model: str
) -> tuple[Histogram, Histogram]:
    return (
        Histogram(f"paceline_{name}", text, ["model"], registry=registry, buckets=buckets).labels(
            model
        ),
        Histogram(f"vllm:{name}", text, ["model_name"], registry=registry, buckets=buckets).labels(
            model
        ),
    )


def _add(counters: tuple[Counter, Counter, str], value: float, *labels: str) -> None:
    own, other, model = counters
    own.labels(model, *labels).inc(value)
    other.labels(model, *labels).inc(value)


def _set(gauges: tuple[Gauge, Gauge], value: float) -> None:
    for gauge in gauges:
        gauge.set(value)


def _observe(histograms: tuple[Histogram, Histogram], value: float) -> None:
    for histogram in histograms:
        histogram.observe(value)
