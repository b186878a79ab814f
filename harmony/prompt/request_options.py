"""Applies what a request changes about its prompt: variables of the template, and a message that is continued."""

from collections.abc import Collection, Mapping
from typing import Any

from antiphon.harmony.format import THINKING_SWITCHES, TemplateOptions
from antiphon.harmony.prompt.message_shape import ChatMessage
from antiphon.harmony.rendered_prompt import RenderError, UnsupportedOptionError
from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper


def check_options(options: TemplateOptions, readable: Collection[str] | None) -> None:
    """Raises `UnsupportedOptionError` for a value that the template would ignore.

    `readable`: variables that the template reads and the server does not set; None if they are not known.
    """
    if readable is None:
        return
    for name in options.variables:
        if name not in readable and name not in THINKING_SWITCHES:
            message = "The chat template of this model does not read this variable, or the server sets it."
            raise UnsupportedOptionError(message, f"chat_template_kwargs.{name}")
    if options.documents and "documents" not in readable:
        raise UnsupportedOptionError("The chat template of this model shows no documents.", "documents")
    is_whole = not options.add_generation_prompt and not options.continue_final_message
    if is_whole and "add_generation_prompt" not in readable:
        message = "The chat template of this model does not read it: every prompt ends in the same way."
        raise UnsupportedOptionError(message, "add_generation_prompt")


def build_variables(
    options: TemplateOptions,
    escaper: SpecialTokenEscaper,
    readable: Collection[str] | None,
    constants: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the template's variables that the request sets, with their strings escaped.

    A switch of reasoning that the template does not read is left out. A string among the `constants`, with which the
    template may compare it, is escaped only where it contains a whole special token.
    """
    variables = {
        name: _escape_variable(value, escaper, constants)
        for name, value in options.variables.items()
        if name not in THINKING_SWITCHES or readable is None or name in readable
    }
    if options.documents:
        variables["documents"] = escaper.escape_value(list(options.documents))
    return variables


def _escape_variable(value: Any, escaper: SpecialTokenEscaper, constants: Collection[str]) -> Any:
    if isinstance(value, str) and value in constants and not escaper.contains_token(value):
        return value
    return escaper.escape_value(value)


def mark_final_message(messages: list[ChatMessage], escaper: SpecialTokenEscaper) -> None:
    """Marks the end of the last message's text. Raises `RenderError` if it is not a text of the assistant's."""
    last: Mapping[str, Any] = messages[-1] if messages else {}
    if last.get("role") != "assistant" or "tool_calls" in last or not isinstance(last.get("content"), str):
        message = "The answer can only continue a last message of the assistant that ends with text."
        raise RenderError(message, "continue_final_message")
    messages[-1] = {**last, "content": last["content"] + escaper.end_mark}


def cut_at_mark(rendered: str, escaper: SpecialTokenEscaper) -> str:
    """Returns the prompt up to the marked end of the last message. Raises `UnsupportedOptionError` without a mark."""
    text, mark, _ = rendered.rpartition(escaper.end_mark)
    if not mark:
        message = "The chat template of this model does not show the text of the last message."
        raise UnsupportedOptionError(message, "continue_final_message")
    return text.replace(escaper.end_mark, "")
