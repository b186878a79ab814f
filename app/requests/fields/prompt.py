"""Fields of vLLM's API that change how a chat becomes a prompt: those of `/v1/chat/completions` and of `/tokenize`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from antiphon.app.errors import ApiError, clip_text, invalid_value, unsupported_field
from antiphon.app.requests.fields import FieldRule
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.fields.common import Effort
from antiphon.harmony.format import THINKING_SWITCHES

MAX_TEMPLATE_CHARS = 65_536
"""Maximum size of a request's template. Compiling it holds the interpreter's lock, up to 0.4 s at this size."""
MAX_TEMPLATE_VARIABLES = 64
MAX_VARIABLES_CHARS = 65_536
"""Maximum characters of all strings in `chat_template_kwargs`."""
MAX_DOCUMENTS = 256
MAX_PROMPT_DEPTH = 8
"""Maximum depth of arrays and objects inside variables and documents."""
MAX_VARIABLE_VALUES = 16_384
"""Maximum number of values inside `chat_template_kwargs`."""
MAX_DOCUMENT_VALUES = 1_024
"""Maximum number of values inside one document."""
SERVER_VARIABLES = frozenset(
    """messages tools xml_tools documents add_generation_prompt continue_final_message add_special_tokens chat_template
    tokenize padding truncation max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs
    conversation conversations self loop super caller varargs kwargs strftime_now raise_exception""".split()
)
"""Names that mean something else in a template, or in the functions that render one."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _check_size(value: Any, path: str, max_values: int, max_chars: int | None = None) -> None:
    """Raises `ApiError` 400 if a value has too many values inside it, too many characters, or too many levels."""
    num_values = num_chars = 0
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        inner, depth = waiting.pop()
        if isinstance(inner, str):
            num_chars += len(inner)
        elif isinstance(inner, dict | list):
            if depth > MAX_PROMPT_DEPTH:
                message = f"Invalid '{path}': nested too deeply. Expected at most {MAX_PROMPT_DEPTH} levels of values."
                raise invalid_value(path, message)
            num_values += len(inner)
            children = [*inner.keys(), *inner.values()] if isinstance(inner, dict) else inner
            waiting += [(child, depth + 1) for child in children[: max_values + 1]]
        if num_values > max_values or (max_chars is not None and num_chars > max_chars):
            limit = f"{max_values} values" + (f" and {max_chars} characters" if max_chars is not None else "")
            raise ApiError(
                400, "object_above_max_size", f"Invalid '{path}': too large. Expected at most {limit}.", path
            )


def _check_variables(value: Any, path: str) -> None:
    if len(value) > MAX_TEMPLATE_VARIABLES:
        expectation = f"Expected an object with at most {MAX_TEMPLATE_VARIABLES} properties, but got {len(value)}."
        message = f"Invalid '{path}': too many properties. {expectation}"
        raise ApiError(400, "object_above_max_properties", message, path)
    for name, entry in value.items():
        entry_path = f"{path}.{clip_text(name)}"
        if not _VARIABLE_NAME.fullmatch(name):
            raise invalid_value(entry_path, f"Invalid '{entry_path}': it is not the name of a variable.")
        if name in THINKING_SWITCHES and entry is not None:
            build_check(bool)(entry, entry_path)
    _check_size(value, path, MAX_VARIABLE_VALUES, MAX_VARIABLES_CHARS)


def refuse_server_variables(variables: Mapping[str, Any]) -> None:
    """Raises `ApiError` 400 for a key of "chat_template_kwargs" that the server sets."""
    for name in variables:
        if name in SERVER_VARIABLES:
            raise unsupported_field(f"chat_template_kwargs.{name}", "The server sets this variable.")


def _check_documents(value: Any, path: str) -> None:
    for index, document in enumerate(value):
        _check_size(document, f"{path}[{index}]", MAX_DOCUMENT_VALUES)


EffortField = Annotated[
    Effort | None,
    FieldRule("honoured", "Applied when the prompt is rendered; `none` turns reasoning off if the model can."),
]
VariablesField = Annotated[
    Annotated[dict[str, Any], Checked(_check_variables)] | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. At most 64 variables of the model's chat template. A variable that the template does not "
        "read, or that the server sets, such as `messages`, is refused by name. `enable_thinking` and `thinking` are "
        "boolean and never refused: false means the same as `reasoning_effort` `none`.",
    ),
]
TemplateField = Annotated[
    Annotated[str, Meta(max_length=MAX_TEMPLATE_CHARS)] | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. A Jinja template of at most 65536 characters in place of the model's own, run with the "
        "same limits in a process of its own. 400 unless the server was started with `--trust-request-chat-template`.",
    ),
]
DocumentsField = Annotated[
    Annotated[Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)], Checked(_check_documents)] | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. At most 256 objects, given to the model's chat template; 400 if the template shows no "
        "documents.",
    ),
]
GenerationPromptField = Annotated[
    bool | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. Default: true, unless `continue_final_message` is set. False: the prompt does not begin "
        "the assistant's next message; 400 for models whose prompts always do.",
    ),
]
ContinueField = Annotated[
    bool | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. True: the prompt ends inside the last message, which must be a text of the assistant's, "
        "and the answer continues it. Not with `add_generation_prompt`, and not for gpt-oss.",
    ),
]
SpecialTokensField = Annotated[
    bool | None,
    FieldRule(
        "honoured",
        "Not in OpenAI's API. Default: false, since a chat template writes special tokens itself. True adds those that "
        "the tokenizer puts around every text.",
    ),
]
