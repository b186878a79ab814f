"""Metrics of turns. Each is recorded once, when it ends, so that no token waits for a counter."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter

from antiphon.app.observability.metrics.histograms import Exemplar, ModelHistogram
from antiphon.app.turn_types.turn_stats import TurnStats

_TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LONGEST_GAP_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RENDER_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TURN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_COUNT_BUCKETS = tuple(2**power for power in range(0, 18, 2))
_HISTOGRAMS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("time_to_first_token_seconds", "Time from the request to its first token.", _FIRST_TOKEN_BUCKETS_S),
    ("time_per_output_token_seconds", "Mean time between the output tokens of a turn.", _TOKEN_GAP_BUCKETS_S),
    ("longest_gap_seconds", "Longest time between two outputs of a job of a turn.", _LONGEST_GAP_BUCKETS_S),
    ("e2e_request_latency_seconds", "Time from the request to its last event.", _TURN_BUCKETS_S),
    ("render_time_seconds", "Time from the parsed request to its rendered prompt.", _RENDER_BUCKETS_S),
    ("queue_time_seconds", "Time that the jobs of a turn waited for the engine.", _FIRST_TOKEN_BUCKETS_S),
    ("prefill_time_seconds", "Time from the admission of a turn's jobs to their first tokens.", _FIRST_TOKEN_BUCKETS_S),
    ("decode_time_seconds", "Time from the first tokens of a turn's jobs to their last ones.", _TURN_BUCKETS_S),
    ("request_prompt_tokens", "Prompt tokens per turn.", _TOKEN_COUNT_BUCKETS),
    ("request_generation_tokens", "Generated tokens per turn.", _TOKEN_COUNT_BUCKETS),
)
_COUNTERS = (
    (
        *("requests_finished", "Finished turns by finish reason, failed and cancelled ones included."),
        ["model_name", "finished_reason"],
    ),
    ("turn_endings", "Finished turns by the cause of their end.", ["model_name", "cause"]),
)


class TurnMetrics:
    """Counters and histograms of turns that have ended."""

    def __init__(self, registry: CollectorRegistry) -> None:
        finished, endings = (
            Counter(f"antiphon:{name}", help_text, labels, registry=registry) for name, help_text, labels in _COUNTERS
        )
        # Looking up a label set takes longer than counting.
        self._finished, self._endings = cache(finished.labels), cache(endings.labels)
        self._histograms = {
            name: ModelHistogram(f"antiphon:{name}", help_text, buckets) for name, help_text, buckets in _HISTOGRAMS
        }
        for histogram in self._histograms.values():
            registry.register(histogram)

    def record(self, stats: TurnStats, exemplar: Exemplar | None = None) -> None:
        """Records a turn that has ended. `exemplar` is given if there is a trace of it."""
        times, model, histograms = stats.times, stats.model, self._histograms
        self._finished(model, stats.status).inc()
        if stats.ending is not None:
            self._endings(model, stats.ending.cause).inc()
        histograms["e2e_request_latency_seconds"].observe(model, times.seconds_until(times.ended) or 0.0, exemplar)
        histograms["request_prompt_tokens"].observe(model, stats.input_tokens)
        histograms["request_generation_tokens"].observe(model, stats.output_tokens)
        if times.parsed is not None and times.rendered is not None:
            histograms["render_time_seconds"].observe(model, times.rendered - times.parsed)
        if any(job.admitted is not None for job in stats.jobs):
            histograms["queue_time_seconds"].observe(model, sum(job.queue_s for job in stats.jobs), exemplar)
        first_s, last_s = times.seconds_until(times.first_token), times.seconds_until(times.last_token)
        if first_s is None or last_s is None:
            return
        histograms["time_to_first_token_seconds"].observe(model, first_s, exemplar)
        histograms["prefill_time_seconds"].observe(model, sum(job.prefill_s for job in stats.jobs))
        histograms["decode_time_seconds"].observe(model, sum(job.decode_s for job in stats.jobs))
        histograms["longest_gap_seconds"].observe(model, max((job.longest_gap_s for job in stats.jobs), default=0.0))
        if stats.output_tokens > 1:
            histograms["time_per_output_token_seconds"].observe(model, (last_s - first_s) / (stats.output_tokens - 1))
