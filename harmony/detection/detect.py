"""Detects the dialect of a model: by name if one is given, otherwise from its configuration and chat template.

A model whose dialect cannot be determined is read as plain text. That is always correct, but its tool calls are not
parsed, so the choice is returned with its reason, for the log. This module reads a model's small files and nothing
else.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from tokenizers import Tokenizer

from antiphon.events.inputs import InputMessage
from antiphon.harmony.calls.call_block import CallBlock
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.detection import response_template
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import DIALECTS, GPT_OSS, NAMES
from antiphon.harmony.dialects.glm import HY3, create_hy3, find_hy3_suffix
from antiphon.harmony.dialects.headers import HARMONY
from antiphon.harmony.dialects.plain import PLAIN
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.image_tokens import read_image_tokens
from antiphon.harmony.model_files import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    ModelFileError,
    check_file,
    read_json_object,
    read_template,
)
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.prompt.templates.template_renderer import PROBE_TIME
from antiphon.harmony.rendered_prompt import RenderError
from antiphon.harmony.tokens.vocabulary import ByteVocabulary, TokenizerVocabulary
from antiphon.harmony.tools import ToolTable

_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_LIKE_A_TOKEN = re.compile(r"</?[|｜]?[^<>\s=]*[|｜]?>|\[/?[A-Z_]{3,}\]")  # noqa: RUF001  # DeepSeek's bars
_TOKEN_PART = re.compile(r"<\|\w+\|>")
GPT_OSS_TYPE = "gpt_oss"
"""`model_type` of gpt-oss."""
GPT_OSS_TOKEN_IDS = {"<|start|>": 200006, "<|channel|>": 200005}
"""Tokens of gpt-oss's format, with their ids in its vocabulary."""
_CHATML = Path(__file__).parents[1] / "prompt" / "chatml.jinja"


class LoadedFormat(Struct, frozen=True):
    """Format of a model, and the reason for the choice in one line."""

    format: ModelFormat
    reason: str
    folder: Path | None = None
    """Folder that the format was read from."""

    @property
    def note(self) -> str:
        """The reason, and what the dialect does not read of its model's chat template, in one line."""
        if self.folder is None or not isinstance(self.format, TemplateFormat):
            return self.reason
        unread = self.format.unread_syntax
        return f"{self.reason}; warning: {unread}" if unread else self.reason


class ModelTemplates(Struct, frozen=True):
    """Chat templates of a model. `for_tools` is the one for requests with tools, if there are two."""

    default: str
    for_tools: str = ""

    @property
    def source(self) -> str:
        """Text of both templates."""
        return "\n".join(filter(None, (self.for_tools, self.default)))


class DialectError(ValueError):
    """Raised for a model whose dialect cannot be set up. The message names the remedy."""


class UnusableTemplateError(DialectError):
    """Raised for a chat template that does not compile or cannot render a message."""


def load_format(folder: Path, dialect: str | None = None, template: str | None = None) -> LoadedFormat:
    """Returns the format of the model in a folder. Raises `DialectError`.

    `template`: chat template to use instead of the model's own, for the detection, too. It must render a message.
    """
    try:
        loaded = _load_format(folder, dialect, template)
    except ModelFileError as error:
        raise DialectError(str(error)) from error
    if template is not None:
        _check_template(loaded.format)
    return loaded


def _check_template(model_format: ModelFormat) -> None:
    """Raises `UnusableTemplateError` if the format cannot render a user's message."""
    if not isinstance(model_format, TemplateFormat):
        raise UnusableTemplateError(f"{GPT_OSS} has a format of its own, which no chat template changes")
    text = "How far is it?"
    try:
        prompt = model_format.render_prompt(
            PromptInput(items=(InputMessage(role="user", content=text),), tools=ToolTable()), now=PROBE_TIME
        )
    except RenderError as error:
        raise UnusableTemplateError(error.message) from error
    if text not in prompt.text:
        raise UnusableTemplateError("it writes prompts without the user's message")


def _load_format(folder: Path, dialect: str | None, own_template: str | None) -> LoadedFormat:
    config = read_json_object(folder / "config.json")
    templates = read_chat_templates(folder) if own_template is None else ModelTemplates(own_template)
    if dialect not in (None, *NAMES):
        raise DialectError(f"Unknown dialect {dialect!r}. Use one of: {', '.join(NAMES)}.")
    if dialect == GPT_OSS or (dialect is None and config.get("model_type") == GPT_OSS_TYPE):
        vocabulary, added_tokens = None, None
    else:
        vocabulary = _read_vocabulary(folder)
        added_tokens = vocabulary.added_tokens
    name, reason = (dialect, "chosen by name") if dialect else detect_dialect(config, templates.source, added_tokens)
    if vocabulary is None or name == GPT_OSS:
        return LoadedFormat(_create_gpt_oss_format(), f"dialect {GPT_OSS}: {reason}", folder)
    declaration, tokenizer_config = (
        _find_declaration(name, templates.source, added_tokens or ()),
        read_json_object(folder / "tokenizer_config.json"),
    )
    if dialect is None and "response_template" in tokenizer_config:
        declaration, reason = _apply_response_template(declaration, tokenizer_config["response_template"], reason)
    if not templates.default and own_template is None:
        templates = ModelTemplates(_CHATML.read_text("utf-8"), templates.for_tools)
        reason = f"{reason}; it has no chat template, so ChatML is used"
    token_files = (tokenizer_config, read_json_object(folder / "processor_config.json"))
    try:
        model_format = TemplateFormat(
            declaration,
            vocabulary,
            ChatTemplate(templates.default),
            _token_names(tokenizer_config),
            ChatTemplate(templates.for_tools) if templates.for_tools else None,
            read_image_tokens(config, token_files, vocabulary.added_tokens),
        )
    except RenderError as error:
        place = "" if own_template is not None else f"{folder}: "
        raise UnusableTemplateError(f"{place}{error.message}") from error
    return LoadedFormat(model_format, f"dialect {declaration.name}: {reason}", folder)


def _find_declaration(name: str, template: str, added_tokens: Iterable[str]) -> Dialect:
    """Returns a dialect by name, with the spelling of this model's tags."""
    suffix = find_hy3_suffix(template, added_tokens) if name == HY3.name else ""
    return create_hy3(name, HY3.models, suffix) if suffix else DIALECTS[name]


def _create_gpt_oss_format() -> ModelFormat:
    """Imports OpenAI's library, which takes a tenth of a server's start, only if a model needs it."""
    from antiphon.harmony.gptoss.format import GptOssFormat  # noqa: PLC0415

    return GptOssFormat()


def _apply_response_template(detected: Dialect, template: object, reason: str) -> tuple[Dialect, str]:
    """Returns the dialect of a response template, or `detected` if that is equal or unsupported; and the reason."""
    try:
        template_dialect = response_template.parse_response_template(template)
    except response_template.UnsupportedTemplate as error:
        return detected, f"{reason}; its response_template is not used: {error}"
    except RecursionError:
        return detected, f"{reason}; its response_template is not used: it is nested too deeply"
    known_openers = {opener for call_format in detected.calls for opener in call_format.openers}
    template_openers = {opener for call_format in template_dialect.calls for opener in call_format.openers}
    if known_openers & template_openers and template_dialect.think in (None, detected.think):
        return detected, f"{reason}, and its response_template agrees"
    stops = dict.fromkeys((*detected.stop, *template_dialect.stop))
    return replace(template_dialect, stop=tuple(stops)), "from its response_template"


def bytes_format(dialect: str) -> ModelFormat:
    """Returns a format that needs no files: bytes and markers as tokens. gpt-oss brings its own vocabulary."""
    if dialect == GPT_OSS:
        return _create_gpt_oss_format()
    declaration = DIALECTS[dialect]
    # These models write these tags in ordinary tokens.
    markers = [
        marker
        for marker in declaration.all_markers
        if _LIKE_A_TOKEN.fullmatch(marker) and marker not in ("</function>", "</parameter>")
    ]
    parts = [
        part for marker in declaration.all_markers if marker not in markers for part in _TOKEN_PART.findall(marker)
    ]
    vocabulary = ByteVocabulary(
        (*_ADDED_TOKENS, *markers, *dict.fromkeys(parts)), (*_SPECIAL_TOKENS, *declaration.stop)
    )
    return TemplateFormat(declaration, vocabulary, ChatTemplate(_CHATML.read_text(encoding="utf-8")))


def detect_dialect(
    config: Mapping[str, Any], template: str, added_tokens: Mapping[str, int] | None = None
) -> tuple[str, str]:
    """Returns the dialect's name and the reason, from a model's configuration, chat template and added tokens."""
    model_type, added_tokens = config.get("model_type"), added_tokens or {}
    if model_type == GPT_OSS_TYPE:
        return GPT_OSS, f"its model_type is {GPT_OSS_TYPE}"
    if all(token in template for token in GPT_OSS_TOKEN_IDS):
        if added_tokens and any(added_tokens.get(text) != token for text, token in GPT_OSS_TOKEN_IDS.items()):
            return HARMONY.name, "its chat template writes <|channel|>, and its vocabulary is not that of gpt-oss"
        return GPT_OSS, "its chat template writes <|channel|>"
    return _find_by_markers(template, added_tokens) or _find_by_model(model_type, template, added_tokens)


def _find_by_markers(template: str, added_tokens: Mapping[str, int]) -> tuple[str, str] | None:
    if suffix := find_hy3_suffix(template, added_tokens):
        return HY3.name, f"its tags end in {suffix}"
    for dialect in DIALECTS.values():
        if markers := dialect.find_template_markers(template):
            return dialect.name, f"its chat template writes {' and '.join(markers)}"
    return None


def _find_by_model(model_type: object, template: str, added_tokens: Mapping[str, int]) -> tuple[str, str]:
    for dialect in DIALECTS.values():
        if dialect.vocabulary_markers and all(marker in added_tokens for marker in dialect.vocabulary_markers):
            return dialect.name, f"its vocabulary has {' and '.join(dialect.vocabulary_markers)}"
    for dialect in DIALECTS.values():
        if model_type in dialect.model_types:
            return dialect.name, f"its model_type is {model_type}"
    return PLAIN.name, "its chat template has no known tool call markers" if template else "it has no chat template"


def dialect_table() -> list[tuple[str, str, str, str, str]]:
    """Returns a row per dialect: name, models, reasoning markers, call openers, syntax of custom tool calls."""
    rows = [(GPT_OSS, "gpt-oss", "channel analysis", "channel commentary to=functions.NAME", "raw text")]
    for dialect in DIALECTS.values():
        reasoning = " … ".join(marker.strip() for marker in dialect.think or ()) or "none"
        openers = dict.fromkeys(call_format.openers[0] for call_format in dialect.calls)
        has_raw_values = any(isinstance(call_format, XmlTagCall | CallBlock) for call_format in dialect.calls)
        custom = "raw text" if dialect.freeform or has_raw_values else "a string" if dialect.calls else "none"
        rows.append((dialect.name, dialect.models, reasoning, ", ".join(openers) or "none", custom))
    return rows


def read_chat_templates(folder: Path) -> ModelTemplates:
    """Returns the chat templates of a model: from their own files, or from the tokenizer's or processor's file.

    A model may have named templates. `tool_use` is for requests with tools only.
    """
    if (file := folder / "chat_template.jinja").exists():
        template: object = read_template(file)
    else:
        files = ("tokenizer_config.json", "chat_template.json")
        values = (read_json_object(folder / name).get("chat_template") for name in files)
        template = next((value for value in values if value), "")
    named: dict[Any, Any] = {
        path.stem: read_template(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))
    }
    if isinstance(template, list):
        named |= {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    elif isinstance(template, str) and template:
        named["default"] = template
    templates: dict[str, str] = {name: text for name, text in named.items() if isinstance(text, str) and text}
    if any(len(text) > MAX_TEMPLATE_BYTES for text in templates.values()):
        raise ModelFileError(f"{folder}: a chat template is longer than {MAX_TEMPLATE_BYTES >> 20} MiB. Shorten it.")
    for_tools = templates.pop("tool_use", "")
    default = templates.get("default", next(iter(templates.values()), ""))
    return ModelTemplates(default, for_tools) if default else ModelTemplates(for_tools)


def _read_vocabulary(folder: Path) -> TokenizerVocabulary:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise DialectError(f"{folder} has no tokenizer.json. Save the model with a fast tokenizer.")
    check_file(file, MAX_TOKENIZER_BYTES)
    try:
        return TokenizerVocabulary(Tokenizer.from_file(str(file)))
    except BaseException as error:  # the library raises its panics past `Exception`
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = f"{file} cannot be read as a tokenizer: {' '.join(str(error).split())[:300]}"
        raise DialectError(f"{reason}. Copy the file again, or save the model with a fast tokenizer.") from error


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the named tokens, such as `eos_token`. Each is a string or an object with `content`."""
    names = {}
    for name, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            names[name] = text
    return names
