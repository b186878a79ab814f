"""Prints `docs/reference/observability.md`: `python -m tests.observability_page > docs/reference/observability.md`.

The tables are those of servers that run every kind of turn, and of the options of the program.
"""

import contextlib
import os
import re
import sys
from pathlib import Path

from msgspec import Struct

from antiphon.app.options.serve_options import flag_name, list_options
from antiphon.app.options.settings import Settings
from antiphon.app.tracing import conventions as names
from tests.app.observability.every_kind import observe
from tests.syntax import ROOT

TRACE_OPTIONS = ROOT / "app/tracing/options.py"
SAMPLING = ROOT / "app/tracing/sampling.py"
VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "URL of the collector, if `--otlp-endpoint` is not given. The others of `OTEL_EXPORTER_OTLP_…` (headers, "
    "timeout, compression, certificates) are read by the exporter.",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "The same with the path, for traces alone.",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "`http/protobuf`, the only one.",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "The same, for traces alone.",
    "OTEL_TRACES_EXPORTER": "`otlp`, or `none`: nothing is traced.",
    "OTEL_SDK_DISABLED": "`true`: nothing is traced.",
    "OTEL_TRACES_SAMPLER": "`parentbased_always_on` (default), `parentbased_always_off`, `parentbased_traceidratio`, or without `parentbased_`.",
    "OTEL_TRACES_SAMPLER_ARG": "Ratio from 0 to 1 for `traceidratio`.",
    "OTEL_SERVICE_NAME": "Name of the service; default: `antiphon`.",
    "OTEL_RESOURCE_ATTRIBUTES": "Further attributes of the service, such as `deployment.environment.name=prod`.",
    "OTEL_BSP_MAX_QUEUE_SIZE": "Spans that wait for the collector; more are dropped. Default: 2048.",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "Spans of one request to the collector. Default: 512.",
    "OTEL_BSP_SCHEDULE_DELAY": "Milliseconds between two requests. Default: 5000.",
}
"""The standard variables and what they do."""
JOB = (names.ENGINE, names.ROUND)
PLACE = (*JOB, names.REPLICA, names.ATTEMPT)


class SpanRow(Struct, frozen=True):
    """A span of the page: when there is one, and its attributes."""

    when: str
    attributes: tuple[str, ...]


SPANS: dict[str, SpanRow] = {
    "POST /v1/responses": SpanRow(
        "each request over HTTP but probes, `/metrics` and the page, and each over WebSocket (`HTTP /v1/responses`)",
        (
            *(names.HTTP_METHOD, names.HTTP_ROUTE, names.HTTP_STATUS, names.URL_PATH, names.URL_SCHEME),
            *(names.ERROR_TYPE, names.REQUEST_ID),
        ),
    ),
    "vllm.grpc.engine.VllmEngine/Generate": SpanRow(
        "each generation over gRPC",
        (names.RPC_SYSTEM, names.RPC_METHOD, names.RPC_STATUS, names.ERROR_TYPE, names.REQUEST_ID),
    ),
    "chat MODEL": SpanRow(
        "each turn; `text_completion MODEL` and `compaction MODEL` for those",
        (
            *(names.OPERATION, names.PROVIDER_NAME, names.REQUEST_MODEL, names.REQUEST_TEMPERATURE),
            *(names.REQUEST_TOP_P, names.REQUEST_TOP_K, names.REQUEST_MAX_TOKENS, names.REQUEST_SEED),
            *(names.REQUEST_PRESENCE_PENALTY, names.REQUEST_FREQUENCY_PENALTY, names.REQUEST_CHOICES),
            *(names.CONVERSATION_ID, names.PREVIOUS_RESPONSE, names.RESPONSE_ID, names.RESPONSE_MODEL),
            *(names.RESPONSE_FINISH_REASONS, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.CACHED_TOKENS),
            *(names.REASONING_TOKENS, names.LATENCY_QUEUE, names.LATENCY_FIRST_TOKEN, names.LATENCY_E2E),
            *(names.LATENCY_PREFILL, names.LATENCY_DECODE, names.LATENCY_INFERENCE, names.ERROR_TYPE),
            *(names.API, names.DIALECT, names.STATUS, names.ENDING, names.REQUEST_ID),
            *(names.ITEMS_OMITTED, names.CALLS_OMITTED),
        ),
    ),
    "embeddings MODEL": SpanRow(
        "each request to an embedding model; `rerank MODEL` to a reranking one",
        (names.OPERATION, names.PROVIDER_NAME, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.INPUT_TOKENS),
    ),
    names.RENDER_SPAN: SpanRow(
        "each turn: from the valid request to the rendered prompt",
        (names.PROMPT_TOKENS, names.RESTORED_TOKENS, names.GRAMMAR),
    ),
    names.QUEUE_SPAN: SpanRow("each job of the engine: its wait for a slot", JOB),
    names.PREFILL_SPAN: SpanRow("each job that was admitted, until its first token", (*PLACE, names.CACHED_TOKENS)),
    names.DECODE_SPAN: SpanRow("each job with a token, until its last one", (*PLACE, names.STEPS, names.LONGEST_GAP)),
    "reasoning, message, function_call NAME, …": SpanRow(
        "each item of the output, 64 at most", (names.ITEM_ID, names.ITEM_TYPE, names.ITEM_STATUS, names.ITEM_TOKENS)
    ),
    "execute_tool NAME": SpanRow(
        "each call of a tool that this server runs, 64 at most",
        (
            *(names.OPERATION, names.TOOL_NAME, names.TOOL_TYPE, names.TOOL_CALL_ID, names.MCP_METHOD),
            *(names.SERVER_LABEL, names.ERROR_TYPE),
        ),
    ),
    names.COMMIT_SPAN: SpanRow("each turn whose end waited for the store", ()),
}
"""The spans by the names of the page."""

INTRODUCTION = """# Metrics, traces and logs

`python -m tests.observability_page > docs/reference/observability.md` prints this page. Its tables are those of servers that have run every kind of turn.

| file | what it is |
|---|---|
| [deploy/grafana/antiphon.json](../../deploy/grafana/antiphon.json) | a dashboard for Grafana |
| [deploy/prometheus/alerts.yaml](../../deploy/prometheus/alerts.yaml) | alerts for Prometheus; [deploy.md](../deploy.md#metrics-and-alerts) says what to do at each |
| [deploy/prometheus/alerts_test.yaml](../../deploy/prometheus/alerts_test.yaml) | cases of the alerts, for `promtool test rules` |

## Metrics

`/metrics` has the text format of Prometheus, and OpenMetrics for clients that accept it, with the same names. OpenMetrics has exemplars: the
histograms of times name the trace and the span of a turn. Nothing is counted per token; a turn is recorded when it ends. No label holds a
client's words: names of models, causes, codes of errors and the operator's labels are all. `requests_rejected_total` has at most 64 reasons.
"""

TRACES = """
## Traces

The extra `otel` (in a checkout, `pip install '.[otel]'`) sends traces by OTLP over HTTP to a collector:

```sh
antiphon serve --otlp-endpoint http://127.0.0.1:4318
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.01 antiphon serve
```

- `traceparent` and `tracestate` of a request are continued: over HTTP, in gRPC's metadata, and in the handshake of a WebSocket for all its
  requests. A malformed one, and a `tracestate` of more than 512 characters, is ignored, and a new trace begins.
- Remote engines get the span of the turn as headers, MCP servers that of the call, as headers and in `_meta`. Baggage is not passed on.
- A turn in the background is a trace of its own, with a link to the request. The choices of a request are several turns under it. Lines of
  batches begin traces of their own.
- The spans of a turn are made once, when it has ended. A turn that is not sampled makes none, and tells engines and tools so.
- No request waits for the collector. Spans that it does not take are counted in `antiphon:spans_dropped_total` and told in one log line a
  minute; the exit of the server waits for it for two seconds at most.
- A variable that cannot be followed keeps no server from starting unless `--otlp-endpoint` is given: it is logged, and nothing is traced.
"""

CONTENT = """
### Content

Spans have no prompts, outputs, stop strings or arguments. `--otlp-content span` adds them to the span of the turn, `event` as an event
`gen_ai.client.inference.operation.details` of it: `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions` and
`gen_ai.tool.definitions`, as JSON in the form of the conventions, each cut to 64 KiB; of pictures and files only their types. The start warns.
With API keys of several owners, `--otlp-content-of` must name the one whose content is sent: the owner's name, or the first 32 digits of
the SHA-256 digest of a key without one.
"""

LOGS = """
## Logs

`--log-format json` writes one object a request. With traces, it has `trace_id` and `span_id` of the request; of a turn in the background also
`turn_trace_id`. Log lines never have content.
"""


def list_metrics() -> list[str]:
    """Returns a row for each family."""
    observed, rows = observe(), []
    for name, family in sorted(observed.families.items()):
        labels = sorted({label for sample in family.samples for label in observed.samples[sample.name]} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return rows


def list_flags() -> list[str]:
    """Returns a row for each option of traces."""
    return [
        f"| `--{option.name or flag_name(field.name)}` | {option.description} |"
        for field, option in list_options(Settings)
        if option.group == "Traces"
    ]


def read_variables() -> set[str]:
    """Returns the standard variables that the program reads, or names as read by the SDK."""
    return {
        name
        for path in (TRACE_OPTIONS, SAMPLING)
        for name in re.findall(r"OTEL_[A-Z_]+[A-Z]", Path(path).read_text(encoding="utf-8"))
    }


def render_page() -> str:
    """Returns the page."""
    spans = [
        f"| `{name}` | {row.when} | {', '.join(f'`{each}`' for each in row.attributes)} |"
        for name, row in SPANS.items()
    ]
    parts = [
        INTRODUCTION,
        "| metric | type | labels | meaning |\n|---|---|---|---|",
        *list_metrics(),
        TRACES,
        "| option | meaning |\n|---|---|",
        *list_flags(),
        "\n| variable | meaning |\n|---|---|",
        *(f"| `{name}` | {text} |" for name, text in VARIABLES.items()),
        "\n### Spans\n",
        f"Names and attributes are those of the schema `{names.SCHEMA_URL}`, in `app/tracing/conventions.py`.",
        "Attributes that begin with `antiphon.` are this project's, `gen_ai.latency.*` are those of vLLM and SGLang, in seconds.\n",
        "| span | there is one for | attributes |\n|---|---|---|",
        *spans,
        CONTENT.rstrip("\n"),
        LOGS.rstrip("\n"),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)  # worker processes import their engine core from the tests
    with contextlib.redirect_stdout(sys.stderr):  # the servers log
        page = render_page()
    print(page, end="")
