"""Parser of `POST /v1/completions`: converts the body to one `TurnSpec` for each prompt."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from antiphon.app.base.errors import invalid_value, missing_field, unsupported_field
from antiphon.app.base.reply_form import CompletionOptions
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import shared
from antiphon.app.requests.capabilities import check_capabilities
from antiphon.app.requests.fields import MAX_CHOICES, check_fields, refuse_unsupported
from antiphon.app.requests.fields.completions import COMPLETION_FIELDS
from antiphon.app.requests.structure import read_structure
from antiphon.app.requests.turn_spec import RawTurn, TokenDetailRequest, TurnSpec
from antiphon.engine.protocol import Sampling
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.raw_text import RawPrompt

DEFAULT_MAX_TOKENS = 16
"""Limit of requests without `max_tokens`, as in OpenAI's API."""


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A validated request: its model, the turns of each prompt, and the form of the reply."""

    model: ServedModel
    specs: tuple[TurnSpec, ...]
    options: CompletionOptions
    stream: bool


def read_completion_request(body: Mapping[str, Any], models: ModelRegistry) -> CompletionRequest:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`."""
    check_fields(COMPLETION_FIELDS, body)
    model = models.find_model(body.get("model"))
    shared.check_stream_options(body)
    if body.get("prompt") is None:
        raise missing_field("prompt")
    sources = _read_sources(body["prompt"], model)
    suffix = _read_suffix(body, model)
    options = _read_options(body)
    _check_choices(body, options, len(sources))
    shared.check_prompt_logprobs(body)
    sampling = _read_sampling(body, model, options, infill=suffix is not None)
    structure = read_structure(body)
    refuse_unsupported(COMPLETION_FIELDS, body)
    spec = TurnSpec(
        base_response=_base_response(body, sampling),
        prompt_input=PromptInput(),
        sampling=sampling,
        stop_strings=() if structure.is_json else shared.read_stop_strings(body),
        stream=bool(body.get("stream")),
        n=options.best_of,
        constraints=structure.constraints,
        prefill_only=options.prompt_only,
        details=_read_details(body, options),
        cache_salt=body.get("cache_salt") or "",
        priority=shared.read_priority(body),
    )
    template = RawPrompt(
        source="",
        suffix=suffix,
        add_special_tokens=body.get("add_special_tokens") is not False,
        max_tokens=shared.read_truncation(body, model.engine.info, sampling),
        locate_tokens=options.echo and options.logprobs is not None,
    )
    specs = []
    for source in sources:
        raw = RawTurn(
            prompt=structs.replace(template, source=source),
            keep_special_tokens=body.get("skip_special_tokens") is False,
            form=structure.form,
        )
        specs.append(structs.replace(spec, raw=raw))
        check_capabilities(specs[-1], model.engine.info.capabilities, form_param=structure.param)
    return CompletionRequest(model=model, specs=tuple(specs), options=options, stream=spec.stream)


def _read_sources(prompt: Any, model: ServedModel) -> list[str | tuple[int, ...]]:
    """Returns each prompt as text or token ids. Raises `ApiError` 400 for an id that the model does not have."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], str):
        return list(prompt)
    is_single = isinstance(prompt[0], int)
    size = model.engine.info.vocab_size
    for number, ids in enumerate([prompt] if is_single else prompt):
        path = "prompt" if is_single else f"prompt[{number}]"
        if not ids:
            raise invalid_value(path, f"Invalid '{path}': the prompt must have at least one token.")
        if (largest := max(ids)) >= size:
            path = f"{path}[{ids.index(largest)}]"
            raise invalid_value(path, f"Invalid '{path}': the model has no token {largest}, only 0 to {size - 1}.")
    return [tuple(ids) for ids in ([prompt] if is_single else prompt)]


def _read_suffix(body: Mapping[str, Any], model: ServedModel) -> str | None:
    """Returns the suffix; None if there is none. Raises `ApiError` 400 if the model cannot fill in the middle."""
    suffix: str | None = body.get("suffix") or None
    if suffix is None:
        return None
    if model.format.raw_text.infill_layout is None:
        raise unsupported_field("suffix", "This model has no fill-in-the-middle tokens.")
    if body.get("echo"):
        raise invalid_value("echo", "'echo' cannot be combined with 'suffix'.")
    prompt = body["prompt"]
    if not (isinstance(prompt, str) or isinstance(prompt[0], str)):
        raise invalid_value("suffix", "'suffix' needs a prompt of text, not of token ids.")
    return suffix


def _read_options(body: Mapping[str, Any]) -> CompletionOptions:
    stream_options, n = body.get("stream_options") or {}, body.get("n") or 1
    include_usage = bool(stream_options.get("include_usage"))
    return CompletionOptions(
        n=n,
        best_of=body.get("best_of") or n,
        echo=bool(body.get("echo")),
        logprobs=body.get("logprobs"),
        prompt_logprobs=body.get("prompt_logprobs"),
        token_ids=bool(body.get("return_token_ids")),
        tokens_as_ids=bool(body.get("return_tokens_as_token_ids")),
        include_stop=bool(body.get("include_stop_str_in_output")),
        stop_ids=frozenset(body.get("stop_token_ids") or ()),
        prompt_only=body.get("max_tokens") == 0,
        request_id=body.get("request_id") or "",
        include_usage=include_usage,
        continuous_usage=include_usage and bool(stream_options.get("continuous_usage_stats")),
        obfuscate=shared.wants_obfuscation(body),
    )


def _check_choices(body: Mapping[str, Any], options: CompletionOptions, num_prompts: int) -> None:
    """Raises `ApiError` 400 for `best_of` below `n`, or more choices than one request may have."""
    shared.check_best_of(body)
    if num_prompts * options.best_of > MAX_CHOICES:
        name = "n" if options.best_of == options.n else "best_of"
        message = f"Invalid '{name}': {num_prompts} prompts with {options.best_of} choices each are more than"
        raise invalid_value(name, f"{message} {MAX_CHOICES} choices.")


def _read_sampling(
    body: Mapping[str, Any], model: ServedModel, options: CompletionOptions, *, infill: bool
) -> Sampling:
    info = model.engine.info
    limit = body["max_tokens"] if body.get("max_tokens") is not None else DEFAULT_MAX_TOKENS
    ranked = options.logprobs if options.logprobs is not None or options.best_of == options.n else 0
    sampling = shared.read_engine_fields(body, info, shared.read_sampling(body, info, max(limit, 1), ranked))
    if infill and (layout := model.format.raw_text.infill_layout) is not None:
        sampling = structs.replace(sampling, stop_ids=(*sampling.stop_ids, *layout.end_ids))
    return sampling


def _read_details(body: Mapping[str, Any], options: CompletionOptions) -> TokenDetailRequest:
    """Returns the data that the reply needs besides events."""
    counts = [body.get("prompt_logprobs"), options.logprobs if options.echo else None]
    return TokenDetailRequest(
        logprobs=options.logprobs is not None or options.best_of > options.n,
        prompt=options.echo or options.token_ids,
        prompt_logprobs=max((count for count in counts if count is not None), default=None),
    )


def _base_response(body: Mapping[str, Any], sampling: Sampling) -> Response:
    return shared.base_response(
        {"model": body["model"]},
        sampling,
        tools=(),
        text=shared.PLAIN_TEXT_CONFIG,
        max_output_tokens=sampling.max_tokens,
        reasoning=shared.reasoning_config(None, None),
        store=False,
    )
