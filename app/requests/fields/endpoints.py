"""The bodies of all endpoints."""

from antiphon.app.requests.batches.body import BatchBody, CompleteUploadBody, NewUploadBody
from antiphon.app.requests.chat.body import ChatBody, DetokenizeBody, StoredCompletionBody, TokenizeBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.embeddings.body import EmbeddingsBody, RerankBody, ScoreBody
from antiphon.app.requests.fields import RequestBody
from antiphon.app.requests.fields.adapters import LoadAdapterBody, UnloadAdapterBody
from antiphon.app.requests.messages.body import CountTokensBody, MessagesBody
from antiphon.app.requests.responses.body import (
    CompactBody,
    ConversationBody,
    NewConversationBody,
    NewItemsBody,
    ResponsesBody,
)

BODIES: dict[str, type[RequestBody]] = {
    "POST /v1/responses": ResponsesBody,
    "POST /v1/responses/input_tokens": ResponsesBody,
    "POST /v1/responses/compact": CompactBody,
    "POST /v1/conversations": NewConversationBody,
    "POST /v1/conversations/{conversation_id}": ConversationBody,
    "POST /v1/conversations/{conversation_id}/items": NewItemsBody,
    "POST /v1/chat/completions": ChatBody,
    "POST /v1/chat/completions/{completion_id}": StoredCompletionBody,
    "POST /v1/completions": TextCompletionBody,
    "POST /v1/messages": MessagesBody,
    "POST /v1/messages/count_tokens": CountTokensBody,
    "POST /v1/batches": BatchBody,
    "POST /v1/uploads": NewUploadBody,
    "POST /v1/uploads/{upload_id}/complete": CompleteUploadBody,
    "POST /v1/embeddings": EmbeddingsBody,
    "POST /v1/rerank": RerankBody,
    "POST /v1/score": ScoreBody,
    "POST /v1/load_lora_adapter": LoadAdapterBody,
    "POST /v1/unload_lora_adapter": UnloadAdapterBody,
    "POST /tokenize": TokenizeBody,
    "POST /detokenize": DetokenizeBody,
}
"""Body by method and path. Other paths of the same handler have the same body."""
