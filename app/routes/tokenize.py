"""`/tokenize`, `/detokenize`, `/version` and `/load`, with the shapes of vLLM's endpoints of these names."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, request_owner, server_context
from antiphon.app.errors import ApiError, invalid_value, missing_field, report_engine_errors
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry, NamedModel, ServedModel
from antiphon.app.requests.chat.body import CHAT_PROMPT_FIELDS, ChatBody, DetokenizeBody, TokenizeBody
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.app.route_helpers.engine_ready import wait_until_known
from antiphon.app.route_helpers.http_replies import cancel_on_disconnect, json_reply
from antiphon.app.sandbox.cpu_limit import run_with_cpu_limit
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import EngineInfo
from antiphon.harmony.tokens.vocabulary import TokenizeError

T = TypeVar("T")
_CPU_LIMIT_S = TurnTimeouts().render_cpu_limit_s
_SHARED_NAMES = set(TokenizeBody.__struct_fields__) & set(ChatBody.__struct_fields__)


@endpoint("POST", "/tokenize", body=TokenizeBody)
async def tokenize_prompt(request: AnyRequest) -> Response[Any]:
    """Returns the token ids of a text, or of the prompt for a chat."""
    models, sent = request_models(request), await parse_body(await request.body())
    sent = {**sent, "model": _model_name(sent, models)}
    encoder = models.get_encoder(sent["model"])
    await wait_until_known(request, encoder or models.get_model(sent["model"]))
    body = await run_parser(request_state(request.scope).body_bytes, decode_body, TokenizeBody, sent)
    if body.messages is None:
        _refuse_chat_fields(body)
    if encoder is not None:
        return await _tokenize_for_encoder(request, body, encoder)
    model = models.find_model(body.model)
    if body.prompt is not None and body.messages is not None:
        raise invalid_value("prompt", "Send either 'prompt' or 'messages', not both.")
    refuse_unsupported(body)
    if body.messages is not None:
        tokens = await cancel_on_disconnect(request, _tokenize_chat(request, sent, model))
    elif body.prompt is not None:
        encode = partial(model.format.encode, body.prompt, add_special_tokens=body.add_special_tokens is not False)
        tokens = await cancel_on_disconnect(request, _run_limited(encode, "prompt"))
    else:
        raise missing_field("prompt")
    reply = {"count": len(tokens), "max_model_len": _get_info(model).max_model_len, "tokens": tokens}
    texts = [model.format.decode_token(token)[0] for token in tokens] if body.return_token_strs else None
    return json_reply({**reply, "token_strs": texts})


@endpoint("POST", "/detokenize", body=DetokenizeBody)
async def detokenize_tokens(request: AnyRequest) -> Response[Any]:
    """Returns the text of token ids, control tokens included."""
    models, sent = request_models(request), await parse_body(await request.body())
    sent = {**sent, "model": _model_name(sent, models)}
    named = models.get_encoder(sent["model"]) or models.get_model(sent["model"])
    await wait_until_known(request, named)
    body = await run_parser(request_state(request.scope).body_bytes, decode_body, DetokenizeBody, sent)
    model = models.get_encoder(body.model) or models.find_model(body.model)
    tokens = body.tokens
    if tokens is None:
        raise missing_field("tokens")
    vocab_size = _get_info(model).vocab_size
    unknown = next((index for index, token in enumerate(tokens) if token >= vocab_size), None)
    if unknown is not None:
        path = f"tokens[{unknown}]"
        raise invalid_value(path, f"Invalid '{path}': the vocabulary of this model has {vocab_size} tokens.")
    decode = model.tokenizer.decode_tokens if isinstance(model, EncoderModel) else model.format.decode
    text = await cancel_on_disconnect(request, _run_limited(partial(decode, tokens), "tokens"))
    return json_reply({"prompt": text})


@endpoint("GET", "/version")
async def get_server_version() -> Response[Any]:
    """Returns the version of this server."""
    return json_reply({"version": version("antiphon")})


@endpoint("GET", "/load")
async def get_server_load(request: AnyRequest) -> Response[Any]:
    """Returns the number of turns and encoder jobs that have started and not ended."""
    context = server_context(request)
    num_jobs = sum(model.engine.stats().running for model in context.models.encoders)
    return json_reply({"server_load": context.turn_manager.num_running + num_jobs})


def _model_name(body: Mapping[str, Any], models: ModelRegistry) -> Any:
    """Returns the requested name, or that of the first model."""
    return body["model"] if body.get("model") is not None else models.served[0].names[0]


def _refuse_chat_fields(body: TokenizeBody) -> None:
    """Raises `ApiError` 400 for a field that changes the prompt of a chat if there is no chat."""
    for name in CHAT_PROMPT_FIELDS:
        if getattr(body, name) is not None:
            raise invalid_value(name, f"'{name}' is only allowed with 'messages'.")


async def _tokenize_chat(request: AnyRequest, body: Mapping[str, Any], model: ServedModel) -> list[int]:
    """Returns the prompt that a chat completion would have."""
    context = server_context(request)
    chat = {name: body[name] for name in _SHARED_NAMES if name in body}
    size = request_state(request.scope).body_bytes
    spec = (await run_parser(size, read_chat_request, chat, request_models(request), context.settings)).spec
    return list((await context.turn_manager.preparer.render_prompt(model, spec, request_owner(request))).tokens)


async def _tokenize_for_encoder(request: AnyRequest, body: TokenizeBody, model: EncoderModel) -> Response[Any]:
    """Returns the token ids of a text as an embedding or reranking model reads it."""
    if body.messages is not None:
        raise invalid_value("messages", "This model reads texts, not chats: send a 'prompt'.")
    if body.prompt is None:
        raise missing_field("prompt")
    max_model_len, add = _get_info(model).max_model_len, body.add_special_tokens is not False
    encode = partial(model.tokenizer.encode_text, body.prompt, add_special_tokens=add)
    tokens = await cancel_on_disconnect(request, _run_limited(encode, "prompt"))
    texts = [model.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
    reply = {"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens, "token_strs": texts}
    return json_reply(reply)


def _get_info(model: NamedModel) -> EngineInfo:
    """Returns the properties of the model's engine. Raises `ApiError` 503 if they are not known yet."""
    with report_engine_errors():
        return model.engine.info


async def _run_limited(work: Callable[[], T], param: str) -> T:
    """Runs `work` in a thread. Raises `ApiError` 400 if it fails, or takes too much CPU time."""
    try:
        return await run_with_cpu_limit(_CPU_LIMIT_S, work)
    except TimeoutError:
        raise ApiError(400, "prompt_too_complex", f"Converting '{param}' exceeded the time limit.", param) from None
    except TokenizeError as error:
        raise ApiError(400, "invalid_prompt", str(error), param) from None
