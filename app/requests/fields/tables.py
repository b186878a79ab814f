"""All tables of fields, by endpoint."""

from antiphon.app.requests.fields import RequestField
from antiphon.app.requests.fields.adapters import LOAD_ADAPTER_FIELDS, UNLOAD_ADAPTER_FIELDS
from antiphon.app.requests.fields.chat import CHAT_FIELDS
from antiphon.app.requests.fields.completions import COMPLETION_FIELDS
from antiphon.app.requests.fields.embeddings import EMBEDDINGS_FIELDS, RERANK_FIELDS, SCORE_FIELDS
from antiphon.app.requests.fields.messages import COUNTED_FIELDS, MESSAGES_FIELDS
from antiphon.app.requests.fields.responses import RESPONSES_FIELDS
from antiphon.app.requests.fields.stored import (
    COMPACT_FIELDS,
    CREATE_CONVERSATION_FIELDS,
    CREATE_ITEMS_FIELDS,
    UPDATE_COMPLETION_FIELDS,
    UPDATE_CONVERSATION_FIELDS,
)
from antiphon.app.requests.fields.tokenize import DETOKENIZE_FIELDS, TOKENIZE_FIELDS

FIELDS_BY_ENDPOINT: dict[str, tuple[RequestField, ...]] = {
    "POST /v1/responses": RESPONSES_FIELDS,
    "POST /v1/responses/input_tokens": RESPONSES_FIELDS,
    "POST /v1/responses/compact": COMPACT_FIELDS,
    "POST /v1/conversations": CREATE_CONVERSATION_FIELDS,
    "POST /v1/conversations/{conversation_id}": UPDATE_CONVERSATION_FIELDS,
    "POST /v1/conversations/{conversation_id}/items": CREATE_ITEMS_FIELDS,
    "POST /v1/chat/completions": CHAT_FIELDS,
    "POST /v1/chat/completions/{completion_id}": UPDATE_COMPLETION_FIELDS,
    "POST /v1/completions": COMPLETION_FIELDS,
    "POST /v1/messages": MESSAGES_FIELDS,
    "POST /v1/messages/count_tokens": COUNTED_FIELDS,
    "POST /v1/embeddings": EMBEDDINGS_FIELDS,
    "POST /v1/rerank": RERANK_FIELDS,
    "POST /v1/score": SCORE_FIELDS,
    "POST /v1/load_lora_adapter": LOAD_ADAPTER_FIELDS,
    "POST /v1/unload_lora_adapter": UNLOAD_ADAPTER_FIELDS,
    "POST /tokenize": TOKENIZE_FIELDS,
    "POST /detokenize": DETOKENIZE_FIELDS,
}
"""Fields by method and path. Other paths of the same handler have the same fields."""
