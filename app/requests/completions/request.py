"""Parser of `POST /v1/completions`: converts the body to one `TurnSpec` for each prompt."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from antiphon.app.errors import invalid_value, missing_field, unsupported_field
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests import shared
from antiphon.app.requests.capabilities import check_capabilities
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.app.requests.fields.common import MAX_CHOICES
from antiphon.app.requests.fields.vllm import UsageOptions
from antiphon.app.requests.structure import read_constraint
from antiphon.app.requests.turn_spec import CompletionTurn, TurnSpec
from antiphon.app.turn_types.reply_form import CompletionForm
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.engine.protocol import Sampling
from antiphon.harmony.format import PromptInput
from antiphon.harmony.passthrough import RawPrompt

DEFAULT_COMPLETION_TOKENS = 16
"""Limit of requests without `max_tokens`, as in OpenAI's API."""


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A validated request: its model, the turns of each prompt, and the form of the reply."""

    model: ServedModel
    specs: tuple[TurnSpec, ...]
    form: CompletionForm


def read_completion_request(sent: Mapping[str, Any], models: ModelRegistry) -> CompletionRequest:
    """Returns the parsed request, with everything checked that does not need the engine. Raises `ApiError`."""
    body = decode_body(TextCompletionBody, sent)
    model = models.find_model(body.model)
    shared.check_stream_options(body)
    if body.prompt is None:
        raise missing_field("prompt")
    sources = _read_sources(body.prompt, model)
    suffix = _read_suffix(body, model, is_text=isinstance(sources[0], str))
    form = _read_form(body)
    _check_choices(body, form, len(sources))
    shared.check_prompt_logprobs(body)
    sampling = _read_sampling(body, model, form, infill=suffix is not None)
    constraint = read_constraint(body)
    refuse_unsupported(body)
    spec = TurnSpec(
        base_response=shared.base_response(body, sampling, max_output_tokens=sampling.max_tokens, store=False),
        prompt_input=PromptInput(),
        prompt_param="prompt",
        sampling=sampling,
        stop_strings=() if constraint.is_json else body.stop_strings,
        n=form.best_of,
        constraints=constraint.constraints,
        prefill_only=form.prompt_only,
        details=_read_details(body, form),
        cache_salt=body.cache_salt or "",
        priority=shared.read_priority(body),
    )
    template = RawPrompt(
        source="",
        suffix=suffix,
        add_special_tokens=body.add_special_tokens is not False,
        max_tokens=shared.read_truncation(body.truncate_prompt_tokens, model.engine.info, sampling),
        locate_tokens=form.echo and form.logprobs is not None,
    )
    specs = []
    for source in sources:
        text_completion = CompletionTurn(
            prompt=structs.replace(template, source=source),
            keep_special_tokens=body.skip_special_tokens is False,
            output_constraint=constraint.output_constraint,
        )
        specs.append(structs.replace(spec, text_completion=text_completion))
        check_capabilities(specs[-1], model.engine.info.capabilities, constraint_param=constraint.param)
    return CompletionRequest(model=model, specs=tuple(specs), form=form)


def _read_sources(prompt: str | list[Any], model: ServedModel) -> list[str | tuple[int, ...]]:
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


def _read_suffix(body: TextCompletionBody, model: ServedModel, *, is_text: bool) -> str | None:
    """Returns the suffix; None if there is none. Raises `ApiError` 400 if the model cannot fill in the middle."""
    if not body.suffix:
        return None
    if model.format.passthrough.infill_layout is None:
        raise unsupported_field("suffix", "This model has no fill-in-the-middle tokens.")
    if body.echo:
        raise invalid_value("echo", "'echo' cannot be combined with 'suffix'.")
    if not is_text:
        raise invalid_value("suffix", "'suffix' needs a prompt of text, not of token ids.")
    return body.suffix


def _read_form(body: TextCompletionBody) -> CompletionForm:
    stream_options, n = body.stream_options or UsageOptions(), body.n or 1
    include_usage = bool(stream_options.include_usage)
    return CompletionForm(
        stream=bool(body.stream),
        n=n,
        best_of=body.best_of or n,
        echo=bool(body.echo),
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        include_stop=bool(body.include_stop_str_in_output),
        stop_ids=frozenset(body.stop_token_ids or ()),
        prompt_only=body.max_tokens == 0,
        request_id=body.request_id or "",
        include_usage=include_usage,
        continuous_usage=include_usage and bool(stream_options.continuous_usage_stats),
        obfuscate=bool(stream_options.include_obfuscation),
    )


def _check_choices(body: TextCompletionBody, form: CompletionForm, num_prompts: int) -> None:
    """Raises `ApiError` 400 for `best_of` below `n`, or more choices than one request may have."""
    shared.check_best_of(body)
    if num_prompts * form.best_of > MAX_CHOICES:
        name = "n" if form.best_of == form.n else "best_of"
        message = f"Invalid '{name}': {num_prompts} prompts with {form.best_of} choices each are more than"
        raise invalid_value(name, f"{message} {MAX_CHOICES} choices.")


def _read_sampling(body: TextCompletionBody, model: ServedModel, form: CompletionForm, *, infill: bool) -> Sampling:
    info = model.engine.info
    limit = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    ranked = form.logprobs if form.logprobs is not None or form.best_of == form.n else 0
    sampling = shared.read_engine_fields(body, info, shared.read_sampling(body, info, max(limit, 1), ranked))
    if infill and (layout := model.format.passthrough.infill_layout) is not None:
        sampling = structs.replace(sampling, stop_ids=(*sampling.stop_ids, *layout.end_ids))
    return sampling


def _read_details(body: TextCompletionBody, form: CompletionForm) -> TokenDetailRequest:
    """Returns the data that the reply needs besides events."""
    counts = [body.prompt_logprobs, form.logprobs if form.echo else None]
    return TokenDetailRequest(
        logprobs=form.logprobs is not None or form.best_of > form.n,
        prompt=form.echo or form.token_ids,
        prompt_logprobs=max((count for count in counts if count is not None), default=None),
    )
