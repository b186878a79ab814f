"""Options of traces: flags, the standard variables, samplers, and what is refused."""

import random
from typing import Any

import pytest
from opentelemetry.sdk.trace import sampling as sdk_sampling
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from antiphon.app.options.api_keys import key_digest, plain_key
from antiphon.app.options.settings import Settings
from antiphon.app.tracing import options as trace_options
from antiphon.app.tracing.options import (
    MAX_BATCH_SPANS,
    MAX_QUEUE_SPANS,
    TraceOptionError,
    complete_endpoint,
    read_trace_options,
)
from antiphon.app.tracing.sampling import create_sampler
from antiphon.app.turn_types.tracing.context import SpanIds

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def read(variables: dict[str, str] | None = None, **settings: Any) -> trace_options.TraceOptions | None:
    return read_trace_options(Settings(**settings), variables or {})


def test_nothing_is_traced_unless_asked() -> None:
    assert read() is None
    assert read({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on", ENDPOINT: " "}) is None


@pytest.mark.parametrize("name", [ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_variables_are_enough(name: str) -> None:
    found = read({name: "http://collector:4318"})
    assert found is not None and found.endpoint is None  # the exporter reads them


def test_flag_wins_over_variables() -> None:
    found = read({ENDPOINT: "http://other:4318"}, otlp_endpoint="http://127.0.0.1:4318/")
    assert found is not None and found.endpoint == "http://127.0.0.1:4318/v1/traces"
    assert (found.max_queue, found.max_batch, found.delay_s) == (MAX_QUEUE_SPANS, MAX_BATCH_SPANS, 5.0)


@pytest.mark.parametrize("variables", [{"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_standard_switches(variables: dict[str, str]) -> None:
    assert read({ENDPOINT: "http://x:1", **variables}) is None
    assert read(variables, otlp_endpoint="http://x:1") is None


def test_sizes_of_the_queue() -> None:
    names = ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_SCHEDULE_DELAY")
    found = read(dict(zip(names, ("10", "5", "250"), strict=True)), otlp_endpoint="http://x:1")
    assert found is not None and (found.max_queue, found.max_batch, found.delay_s) == (10, 5, 0.25)
    for text in ("-1", "0", "many", "1e3", "9" * 20):
        found = read(dict.fromkeys(names, text), otlp_endpoint="http://x:1")
        assert found is not None and (found.max_queue, found.delay_s) == (MAX_QUEUE_SPANS, 5.0)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/protobuf"),
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"}, "OTEL_TRACES_SAMPLER_ARG"),
    ],
)
def test_bad_variable_is_refused_with_the_flag_and_told_without(
    variables: dict[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceOptionError, match=reason) as caught:
        read(variables, otlp_endpoint="http://x:1")
    assert "\n" not in str(caught.value)
    assert read({ENDPOINT: "http://x:1", **variables}) is None
    assert "no traces are exported" in capsys.readouterr().out


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_options, "PACKAGES", ("no_such_package.sdk",))
    with pytest.raises(TraceOptionError, match=r"antiphon\[otel\]"):
        read(otlp_endpoint="http://x:1")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://otel.example/base/", "https://otel.example/base/v1/traces"),
        ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
    ],
)
def test_url_of_a_collector(url: str, expected: str) -> None:
    assert complete_endpoint(url) == expected


@pytest.mark.parametrize(
    "url", ["", "collector:4318", "ftp://x", "http://", "http://u:p@x", "http://x?a=1", "http://x:99999", "http://x#a"]
)
def test_bad_url_is_refused(url: str) -> None:
    with pytest.raises(TraceOptionError, match="--otlp-endpoint") as caught:
        complete_endpoint(url)
    assert "u:p" not in str(caught.value)


def test_content_of_several_owners_needs_a_choice() -> None:
    keys, url = (plain_key(key_digest("sk-one")), plain_key(key_digest("sk-two"))), "http://x:1"
    with pytest.raises(TraceOptionError, match="--otlp-content-of"):
        read(otlp_endpoint=url, otlp_content="span", fixed_keys=keys)
    found = read(otlp_endpoint=url, otlp_content="span", fixed_keys=keys, otlp_content_of="team")
    assert found is not None and (found.content, found.content_owner) == ("span", "team")
    found = read(otlp_endpoint=url, otlp_content="event", fixed_keys=keys[:1])
    assert found is not None and found.content_owner == keys[0].owner
    found = read(otlp_endpoint=url, otlp_content="event")
    assert found is not None and not found.content_owner


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("always_on", sdk_sampling.ALWAYS_ON),
        ("always_off", sdk_sampling.ALWAYS_OFF),
        ("traceidratio", sdk_sampling.TraceIdRatioBased(0.3)),
        ("parentbased_always_on", sdk_sampling.ParentBased(sdk_sampling.ALWAYS_ON)),
        ("parentbased_always_off", sdk_sampling.ParentBased(sdk_sampling.ALWAYS_OFF)),
        ("parentbased_traceidratio", sdk_sampling.ParentBased(sdk_sampling.TraceIdRatioBased(0.3))),
    ],
)
def test_samplers_decide_as_those_of_the_sdk(name: str, theirs: sdk_sampling.Sampler) -> None:
    ours = create_sampler({"OTEL_TRACES_SAMPLER": name.upper(), "OTEL_TRACES_SAMPLER_ARG": "0.3"})
    source = random.Random(2)
    for _ in range(500):
        trace_id = source.getrandbits(128)
        for parent in (None, SpanIds(trace_id, 1, is_sampled=True), SpanIds(trace_id, 1, is_sampled=False)):
            context = None
            if parent is not None:
                flags = TraceFlags(int(parent.is_sampled))
                context = set_span_in_context(NonRecordingSpan(SpanContext(trace_id, 1, True, flags)))
            expected = theirs.should_sample(context, trace_id, "a span").decision.is_sampled()
            assert ours(parent, trace_id) == expected
