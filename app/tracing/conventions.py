"""Every name that this server's spans have, by OpenTelemetry's semantic conventions, and this project's own.

The conventions of generative AI have no span of a server and no children of an inference: those names are this
project's, with the prefix "antiphon". `gen_ai.latency.*` is not in the conventions; vLLM and SGLang send these keys.
A new version of the conventions is a change of this module alone.
"""

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
"""Schema of the names. It is that of the scope of all spans."""
SCOPE_NAME = "antiphon"
PROVIDER = "antiphon"
"""Value of `gen_ai.provider.name`."""

# HTTP and RPC
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
ERROR_TYPE = "error.type"
RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS = "rpc.response.status_code"

# Generative AI
OPERATION = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_CHOICES = "gen_ai.request.choice.count"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"

# Tools of MCP servers
MCP_METHOD = "mcp.method.name"

# Not in the conventions: vLLM's and SGLang's keys, in seconds
LATENCY_QUEUE = "gen_ai.latency.time_in_queue"
LATENCY_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"  # noqa: S105  # no password
LATENCY_E2E = "gen_ai.latency.e2e"
LATENCY_PREFILL = "gen_ai.latency.time_in_model_prefill"
LATENCY_DECODE = "gen_ai.latency.time_in_model_decode"
LATENCY_INFERENCE = "gen_ai.latency.time_in_model_inference"
PREVIOUS_RESPONSE = "gen_ai.request.previous_response.id"
"""Proposed beside them."""

# This project's own
API = "antiphon.api"
DIALECT = "antiphon.dialect"
ENDING = "antiphon.ending"
REQUEST_ID = "antiphon.request_id"
STATUS = "antiphon.status"
PROMPT_TOKENS = "antiphon.prompt.tokens"
RESTORED_TOKENS = "antiphon.prompt.restored_tokens"
GRAMMAR = "antiphon.grammar"
ENGINE = "antiphon.engine"
ROUND = "antiphon.round"
REPLICA = "antiphon.replica"
ATTEMPT = "antiphon.attempt"
STEPS = "antiphon.steps"
LONGEST_GAP = "antiphon.longest_gap_s"
ITEM_ID = "antiphon.item.id"
ITEM_TYPE = "antiphon.item.type"
ITEM_STATUS = "antiphon.item.status"
ITEM_TOKENS = "antiphon.item.tokens"
ITEMS_OMITTED = "antiphon.items.omitted"
CALLS_OMITTED = "antiphon.calls.omitted"
SERVER_LABEL = "antiphon.tool.server_label"

# Spans
RENDER_SPAN = "render"
QUEUE_SPAN = "queue"
PREFILL_SPAN = "prefill"
DECODE_SPAN = "decode"
TOOL_SPAN = "execute_tool"
COMMIT_SPAN = "store commit"
CONTENT_EVENT = "gen_ai.client.inference.operation.details"
"""Event of a span that carries the content."""

OPERATIONS = {
    "responses": "chat",
    "chat": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "compact": "compaction",
}
"""Value of `gen_ai.operation.name` by the API of a turn."""
EMBEDDINGS_OPERATION = "embeddings"
RERANK_OPERATION = "rerank"
"""Not in the conventions, whose list of values is open."""
