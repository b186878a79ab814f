"""Refuses requests with a field that the model's engine cannot honor, before their prompt is rendered."""

from antiphon.app.errors import ApiError, unsupported_field
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import Form, ParsedRequest, TurnSpec
from antiphon.engine.protocol import Capabilities


def accept_spec(model: ServedModel, spec: TurnSpec, form: Form, *, constraint_param: str) -> ParsedRequest[Form]:
    """Returns the parsed request if the model's engine can honor it. Raises `ApiError` like `check_capabilities`."""
    check_capabilities(spec, model.engine.info.capabilities, constraint_param=constraint_param)
    return ParsedRequest(model, spec, form)


def check_capabilities(spec: TurnSpec, capabilities: Capabilities, *, constraint_param: str) -> None:
    """Raises `ApiError` 400 that names the field. `constraint_param`: the API's field for the constraint of the text.

    An engine that runs in this server honors every field. A remote one may lack some.
    """
    if not capabilities.grammar and (param := _find_grammar_param(spec, constraint_param)) is not None:
        remedy = f" Start it with {capabilities.grammar_remedy}." if capabilities.grammar_remedy else ""
        raise unsupported_field(param, f"The model's engine does not follow grammars.{remedy}")
    sampling, limit = spec.sampling, capabilities.max_top_logprobs
    if limit is not None and sampling.top_logprobs is not None and sampling.top_logprobs > limit:
        raise _refuse_logprobs(spec, limit)
    requested = {
        "prompt_logprobs": (capabilities.prompt_logprobs, spec.details.prompt_logprobs is not None),
        "logit_bias": (capabilities.logit_bias, bool(sampling.logit_bias)),
        "min_tokens": (capabilities.min_tokens, sampling.min_tokens > 0),
        "seed": (capabilities.seed, sampling.seed is not None),
        "priority": (capabilities.priority, spec.priority != 0),
    }
    for name, (is_honored, is_requested) in requested.items():
        if is_requested and not is_honored:
            raise unsupported_field(name, "The model's engine does not support it.")


def _find_grammar_param(spec: TurnSpec, constraint_param: str) -> str | None:
    """Returns the field that only a grammar can honor; None if there is none."""
    prompt_input = spec.prompt_input
    if prompt_input.output_constraint is not None or (
        spec.text_completion is not None and spec.text_completion.output_constraint is not None
    ):
        return constraint_param
    if not prompt_input.promises_grammar:
        return None
    is_choice = prompt_input.tool_choice == "required" or prompt_input.allowed_tools is not None
    return "tool_choice" if is_choice else "tools"


def _refuse_logprobs(spec: TurnSpec, limit: int) -> ApiError:
    param = "logprobs" if spec.text_completion is not None or limit < 0 else "top_logprobs"
    reason = "reports no log-probabilities" if limit < 0 else f"reports at most {limit} per token"
    return unsupported_field(param, f"The model's engine {reason}.")
