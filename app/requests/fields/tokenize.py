"""Tables of the fields of `POST /tokenize` and `POST /detokenize`, which have the shapes of vLLM's endpoints."""

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import MAX_TEXT_CHARS, RequestField, refused_field
from antiphon.app.requests.fields.chat import CHAT_FIELDS
from antiphon.app.requests.fields.prompt import PROMPT_FIELDS

_MODEL = RequestField("model", "honoured", c.string_like(256), "A name from `GET /v1/models`. Default: the first one.")
_TOOLS = next(field for field in CHAT_FIELDS if field.name == "tools")
CHAT_PROMPT_FIELDS = (_TOOLS, *(field for field in PROMPT_FIELDS if field.name != "add_special_tokens"))
"""Fields that are only allowed with `messages`."""

TOKENIZE_FIELDS = (
    _MODEL,
    RequestField("prompt", "honoured", c.string_like(MAX_TEXT_CHARS), "The text. Required without `messages`."),
    RequestField(
        "messages",
        "honoured",
        c.array_of(c.is_object),
        "A chat, as in `POST /v1/chat/completions`. Required without `prompt`.",
    ),
    *CHAT_PROMPT_FIELDS,
    RequestField(
        "add_special_tokens",
        "honoured",
        c.is_boolean,
        "Adds the tokens that the tokenizer puts around every text. Default: true for `prompt`, and false for "
        "`messages`, since a chat template writes special tokens itself.",
    ),
    RequestField(
        "return_token_strs", "honoured", c.is_boolean, "Returns the text of each token, too, in `token_strs`."
    ),
    refused_field("mm_processor_kwargs", "Images, audio and video are not supported."),
)
"""Fields of `POST /tokenize`."""

DETOKENIZE_FIELDS = (
    _MODEL,
    RequestField("tokens", "honoured", c.array_of(c.integer_between(0)), "Required. Token ids of the vocabulary."),
)
"""Fields of `POST /detokenize`."""
