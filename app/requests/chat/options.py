"""Reads the fields of vLLM's API that change a chat's prompt or the form of its reply."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.app.errors import invalid_value, unsupported_field
from antiphon.app.options.settings import Settings
from antiphon.app.requests import shared
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields.prompt import refuse_server_variables
from antiphon.app.sandbox.sandboxed_template import SandboxedTemplate
from antiphon.app.turn_types.reply_form import ChatForm, ChatOptions
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.harmony.format import THINKING_SWITCHES, TemplateOptions
from antiphon.harmony.prompt.messages import content_text

TRUST_FLAG = "--trust-request-chat-template"


def read_template_options(body: ChatBody, items: Sequence[AnyInput], settings: Settings) -> TemplateOptions:
    """Returns what the request changes about its prompt. Raises `ApiError` 400."""
    source, variables = body.chat_template, body.chat_template_kwargs or {}
    if source is not None and not settings.trust_request_chat_template:
        raise unsupported_field("chat_template", f"The operator allows it by starting the server with {TRUST_FLAG}.")
    refuse_server_variables(variables)
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        raise invalid_value("continue_final_message", message)
    if continues and not _ends_with_text(items):
        message = "'continue_final_message' needs a last message of the assistant that ends with text."
        raise invalid_value("continue_final_message", message)
    return TemplateOptions(
        source=source,
        compile_source=None if source is None else SandboxedTemplate,
        variables=_read_variables(variables),
        documents=tuple(body.documents or ()),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=continues,
        add_special_tokens=bool(body.add_special_tokens),
    )


def _ends_with_text(items: Sequence[AnyInput]) -> bool:
    return isinstance(last := items[-1], InputMessage) and last.role == "assistant"


def _read_variables(sent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables of the template, without the switches of reasoning that the effort expresses."""
    return {
        name: value
        for name, value in sent.items()
        if value is not None and not (name in THINKING_SWITCHES and value is False)
    }


def read_effort(body: ChatBody) -> str | None:
    """Returns the reasoning effort; a switch of reasoning that is false overrides `reasoning_effort`."""
    switches = {name: (body.chat_template_kwargs or {}).get(name) for name in THINKING_SWITCHES}
    if False in switches.values():
        return "none"
    for name, value in switches.items():
        if value and body.reasoning_effort == "none":
            path = f"chat_template_kwargs.{name}"
            raise invalid_value(path, f"'{path}' contradicts the 'reasoning_effort' of 'none'.")
    return body.reasoning_effort


def read_chat_options(body: ChatBody, items: Sequence[AnyInput]) -> ChatOptions:
    """Returns the form of the reply. Raises `ApiError` 400."""
    n, best_of = body.n or 1, shared.check_best_of(body)
    _check_stored_form(body)
    return ChatOptions(
        num_returned=n if best_of > n else None,
        echo_text=_read_echo(body, items) if body.echo else "",
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        include_stop=bool(body.include_stop_str_in_output),
        stop_ids=frozenset(body.stop_token_ids or ()),
        prompt_logprobs=shared.check_prompt_logprobs(body),
        request_id=body.request_id or "",
    )


def _check_stored_form(body: ChatBody) -> None:
    """Raises `ApiError` 400 if the completion is stored under an id that may not be its own."""
    if body.store and body.request_id:
        raise invalid_value("request_id", "'request_id' cannot be combined with 'store': the server makes the id.")


def _read_echo(body: ChatBody, items: Sequence[AnyInput]) -> str:
    """Returns the text of the last message without its name; empty if it is not the assistant's."""
    last, content = items[-1], ""
    if isinstance(last, InputMessage) and last.role == "assistant":
        content = content_text(last.content)
        if isinstance(last.content, tuple) and body.messages and body.messages[-1].get("name"):
            content = content_text(last.content[1:])
    return content


def chat_details(form: ChatForm) -> TokenDetailRequest:
    """Returns the data that the reply needs besides events."""
    options = form.options
    return TokenDetailRequest(
        logprobs=options.num_returned is not None or (form.logprobs and options.tokens_as_ids),
        prompt=options.token_ids,
        prompt_logprobs=options.prompt_logprobs,
    )
