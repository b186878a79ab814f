"""What a request comes down to, whichever face it came through: one `TurnSpec`.

The Responses decoder and the chat decoder both end here; nothing behind this line knows which it was.
"""

from msgspec import Struct, structs

from antiphon.app.model_registry import ServedModel
from antiphon.app.requests.constraints import OutputConstraint
from antiphon.engine.protocol import Sampling
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput


class TurnSpec(Struct, frozen=True, kw_only=True):
    """One turn to run.

    `head` is the Response before anything happened: every echoed field is set, `id` and `created_at` are minted
    by `app.turns.manager`. `sampling` is complete: the engine's defaults are already merged in, `stop_ids` not yet.
    """

    base_response: Response
    prompt_input: PromptInput
    input_items: tuple[AnyInput, ...] = ()
    """The items of the conversation that came with this request; what is before them is stored already."""
    sampling: Sampling
    stop_strings: tuple[str, ...] = ()
    stream: bool = False
    max_tool_calls: int | None = None
    """Calls after which the turn ends; 1 when parallel calls are off."""
    include_usage: bool = False
    """Chat only: a last chunk with usage."""
    n: int = 1
    """Chat only: how many turns share the prompt."""
    constraints: tuple[OutputConstraint, ...] = ()
    """What the answer must fit, to be tried before the engine is asked."""
    encrypt_reasoning: bool = False
    """Whether reasoning comes sealed, too, for the client to keep."""
    compact: bool = False
    """Whether what the model says is a summary, to be told as one sealed item."""
    obfuscate: bool = False
    """Whether the pieces of a stream are padded."""
    truncate: bool = False
    """Whether the oldest items are left out where all of them are too many."""
    prefill_only: bool = False
    """Whether the prompt is only read, for the turn that will follow it: nothing is said."""
    logprobs: bool = False
    """Whether log-probabilities are said; `sampling.top_logprobs` is then not None."""


class ParsedRequest(Struct, frozen=True):
    """A validated request: the model it is for, and the turn it asks for."""

    model: ServedModel
    spec: TurnSpec
    earlier_items: tuple[AnyInput, ...] = ()
    """Stored items before the input, as the history returned them."""


def as_prefill(spec: TurnSpec) -> TurnSpec:
    """The turn that reads the prompt of this one, and says nothing.

    Many templates know no conversation without a user, and a client that warms up has often none to show yet.
    """
    items = spec.prompt_input.items
    if not any(isinstance(item, InputMessage) and item.role == "user" for item in items):
        items = (*items, InputMessage(role="user", content="."))
    conversation = structs.replace(spec.prompt_input, items=items)
    return structs.replace(
        spec, prompt_input=conversation, sampling=structs.replace(spec.sampling, max_tokens=1), prefill_only=True
    )
