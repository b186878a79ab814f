"""Finds the dialect of a model: by name where it is given, else by the model's configuration and chat template.

What cannot be told is read as plain text, which is always right, if not always enough; so the choice comes with its
reason, for the log. This module reads a model's small files and nothing else.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from tokenizers import Tokenizer

from antiphon.harmony import response_template
from antiphon.harmony.calls.section import CallSection
from antiphon.harmony.calls.xml_tags import XmlTagCall
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.dialects import DIALECTS, GPT_OSS, NAMES
from antiphon.harmony.dialects.plain import PLAIN
from antiphon.harmony.format import ModelFormat, RenderError
from antiphon.harmony.gptoss.format import GptOssFormat
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary, TokenizerVocabulary

_SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_LIKE_A_TOKEN = re.compile(r"</?[|｜]?[^<>\s=]*[|｜]?>|\[/?[A-Z_]{3,}\]")  # noqa: RUF001  # DeepSeek's bars
_TOKEN_PART = re.compile(r"<\|\w+\|>")
_CHATML = Path(__file__).parent / "prompt" / "chatml.jinja"


class LoadedFormat(Struct, frozen=True):
    """A model's format, and in one line why it was chosen."""

    format: ModelFormat
    reason: str


class DialectError(ValueError):
    """A model whose dialect cannot be set up. The message names the remedy."""


def load_format(folder: Path, dialect: str | None = None) -> LoadedFormat:
    """The format of the model in a folder. Raises `DialectError`."""
    template = _read_chat_template(folder)
    name, why = (dialect, "chosen by name") if dialect else detect_dialect(_read_json(folder / "config.json"), template)
    if name == GPT_OSS:
        return LoadedFormat(GptOssFormat(), f"dialect {name}: {why}")
    if name not in DIALECTS:
        raise DialectError(f"There is no dialect {name!r}; there are {', '.join(NAMES)}.")
    known, settings = DIALECTS[name], _read_json(folder / "tokenizer_config.json")
    if dialect is None and "response_template" in settings:
        known, why = _apply_response_template(known, settings["response_template"], why)
    if not (folder / "tokenizer.json").is_file():
        raise DialectError(f"{folder} holds no tokenizer.json; save the model with a fast tokenizer.")
    vocabulary = TokenizerVocabulary(Tokenizer.from_file(str(folder / "tokenizer.json")))
    if not template:
        template, why = _CHATML.read_text(encoding="utf-8"), f"{why}; it has no chat template, ChatML is used"
    try:
        ready = TemplateFormat(known, vocabulary, ChatTemplate(template), _token_names(settings))
    except RenderError as error:
        raise DialectError(error.message) from error
    return LoadedFormat(ready, f"dialect {known.name}: {why}")


def _apply_response_template(known: Dialect, template: object, why: str) -> tuple[Dialect, str]:
    """What a repository's response template tells of, unless it is what is known already; and why."""
    try:
        told = response_template.parse_response_template(template)
    except response_template.UnsupportedTemplate as error:
        return known, f"{why}; its response_template is not used: {error}"
    ours = {opener for frame in known.calls for opener in frame.openers}
    theirs = {opener for frame in told.calls for opener in frame.openers}
    if ours & theirs and told.think in (None, known.think):
        return known, f"{why}, and its response_template says the same"
    stops = dict.fromkeys((*known.stop, *told.stop))
    return replace(told, stop=tuple(stops)), "its response_template says so"


def bytes_format(dialect: str) -> ModelFormat:
    """A format that needs no files: over single bytes, each marker one token. gpt-oss brings its own vocabulary."""
    if dialect == GPT_OSS:
        return GptOssFormat()
    chosen = DIALECTS[dialect]
    # Tags that are written in letters by those who have them stay so.
    markers = [m for m in chosen.all_markers if _LIKE_A_TOKEN.fullmatch(m) and m not in ("</function>", "</parameter>")]
    parts = [part for m in chosen.all_markers if m not in markers for part in _TOKEN_PART.findall(m)]
    vocabulary = ByteVocabulary((*_ADDED_TOKENS, *markers, *dict.fromkeys(parts)), (*_SPECIAL_TOKENS, *chosen.stop))
    return TemplateFormat(chosen, vocabulary, ChatTemplate(_CHATML.read_text(encoding="utf-8")))


def detect_dialect(config: Mapping[str, Any], template: str) -> tuple[str, str]:
    """The dialect's name and why, from a model's configuration and chat template."""
    if config.get("model_type") == "gpt_oss":
        return GPT_OSS, "its model_type is gpt_oss"
    if "<|channel|>" in template and "<|start|>" in template:
        return GPT_OSS, "its chat template writes <|channel|>"
    for dialect in DIALECTS.values():
        if dialect.template_markers and all(sign in template for sign in dialect.template_markers):
            return dialect.name, f"its chat template writes {' and '.join(dialect.template_markers)}"
    return PLAIN.name, "its chat template shows no tool calls that are known here" if template else "it has no template"


def dialect_table() -> list[tuple[str, str, str, str, str]]:
    """Of every dialect: name, models, markers of reasoning, what opens a call, how custom tools are called."""
    rows = [(GPT_OSS, "gpt-oss", "channel analysis", "channel commentary to=functions.NAME", "raw text")]
    for dialect in DIALECTS.values():
        think = " … ".join(marker.strip() for marker in dialect.think or ()) or "none"
        openers = dict.fromkeys(frame.openers[0] for frame in dialect.calls)
        tagged = any(isinstance(frame, XmlTagCall | CallSection) for frame in dialect.calls)
        custom = "raw text" if dialect.freeform_call or tagged else "a string" if dialect.calls else "none"
        rows.append((dialect.name, dialect.models, think, ", ".join(openers) or "none", custom))
    return rows


def _read_chat_template(folder: Path) -> str:
    """The chat template: a file of its own, or in the tokenizer's configuration, alone or among named ones."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    found = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("tool_use") or named.get("default") or next(iter(named.values()), "")
    return found if isinstance(found, str) else ""


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that have a name, such as `eos_token`, each a string or a record of it."""
    named = {}
    for name, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DialectError(f"{file} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}
