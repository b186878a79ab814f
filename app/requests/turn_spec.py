"""`TurnSpec`, the result of parsing a request: what a turn needs, the same for all APIs.

The code that runs a turn does not know which API the request used. The form of the reply is for projections only.
"""

from typing import Any, Generic, TypeVar

from msgspec import Struct, structs

from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.constraints import CheckedConstraint
from antiphon.app.requests.hosted_tools import HostedToolsRequest
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.turn_types.reply_form import ChatForm, ReplyForm
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.app.turn_types.turn_rules import TurnRules
from antiphon.engine.protocol import Sampling
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.passthrough import RawPrompt

Form = TypeVar("Form", bound=ReplyForm)


class CompletionTurn(Struct, frozen=True, kw_only=True):
    """Replaces the conversation of a turn without one: a raw prompt, whose output is nothing but text."""

    prompt: RawPrompt
    keep_special_tokens: bool = False
    """True if control tokens in the output are part of its text."""
    output_constraint: OutputConstraint | None = None
    """Form that the output must have."""


class StoredChat(Struct, frozen=True):
    """The messages of a chat completion that is to be stored, and the form of its reply."""

    messages: tuple[dict[str, Any], ...]
    form: ChatForm


class ApprovalAnswer(Struct, frozen=True):
    """The client's answer to a request for approval. `nonce` is that of the request, which is answered once."""

    request_id: str
    nonce: str


class TurnSpec(Struct, frozen=True, kw_only=True):
    """One turn to run.

    `base_response` is the Response before the first event: every echoed field is set; `app.turns.manager` sets `id`
    and `created_at`. `sampling` includes the engine's defaults, but not yet `stop_ids`.
    """

    base_response: Response
    prompt_input: PromptInput
    prompt_param: str = "input"
    """The request's field of the prompt, which errors name."""
    input_items: tuple[AnyInput, ...] = ()
    """Items that the client sent with this request. Earlier items of the conversation are stored already."""
    sampling: Sampling
    stop_strings: tuple[str, ...] = ()
    single_call: bool = False
    """True if parallel calls are off: a round of the model ends after one complete call."""
    max_tool_calls: int | None = None
    """Maximum number of calls that the server runs; None: see `app.tools`. Calls that the client runs do not count."""
    hosted_tools: HostedToolsRequest | None = None
    """Tools that the server may run, as the request names them; None: it names none."""
    answers: tuple[ApprovalAnswer, ...] = ()
    """Approvals and denials in the input. The turn claims all of them before its first event, or is refused."""
    n: int = 1
    """Number of turns that share the prompt."""
    stored_chat: StoredChat | None = None
    """The chat completion as which the turns are stored; None: each is stored as a response, if at all."""
    constraints: tuple[CheckedConstraint, ...] = ()
    """Schemas and grammars that the output must match, to be checked before the engine gets the job."""
    encrypt_reasoning: bool = False
    """True if reasoning items also have `encrypted_content`, for the client to keep."""
    compact: bool = False
    """True if the model writes a summary, which is returned as one encrypted item."""
    compact_threshold: int | None = None
    """Number of tokens in a prompt above which the conversation is compacted before the model answers; None: never."""
    comparison_id: str | None = None
    """Id of the response with which the prompt is compared, to diagnose the prompt cache; None: with none."""
    truncate: bool = False
    """True if the oldest items are left out when the prompt does not fit."""
    prefill_only: bool = False
    """True if the turn only prefills the prompt for a later turn and returns no output."""
    logprobs: bool = False
    """True if events carry log probabilities; `sampling.top_logprobs` is then not None."""
    media: tuple[SentMedia, ...] = ()
    """Images and files that the client sent with this request."""
    text_completion: CompletionTurn | None = None
    """The prompt of a text completion, which takes the place of `prompt_input`."""
    details: TokenDetailRequest = TokenDetailRequest()
    max_prompt_tokens: int | None = None
    """Number of tokens to keep at the end of the prompt; None for all."""
    cache_salt: str = ""
    """Salt of the prefix cache: a turn shares cached prompts only with turns of the same salt."""
    priority: int = 0
    """Priority in the engine: a turn with a lower one waits for the others."""
    time_limit: float | None = None
    """Time of the event loop after which the client no longer waits; None if it has set no deadline."""

    def build_rules(self) -> TurnRules:
        """Returns what the events of the turn depend on."""
        completion = self.text_completion
        return TurnRules(
            # A stop string could cut JSON that must match a schema.
            stop_strings=() if self.prompt_input.promises_json else self.stop_strings,
            is_plain_text=completion is not None,
            keep_special_tokens=completion is not None and completion.keep_special_tokens,
            single_call=self.single_call,
            max_tool_calls=self.max_tool_calls,
            max_tokens=self.sampling.max_tokens,
            prefill_only=self.prefill_only,
            ends_compacted=self.compact,
            encrypt_reasoning=self.encrypt_reasoning,
            logprobs=self.logprobs,
            details=self.details,
        )


class ParsedRequest(Struct, Generic[Form], frozen=True):
    """A validated request: its model, the turn to run and the form of the reply."""

    model: ServedModel
    spec: TurnSpec
    form: Form
    earlier_items: tuple[AnyInput, ...] = ()
    """Stored items before the input, as the history returned them."""


def as_prefill(spec: TurnSpec) -> TurnSpec:
    """Returns the turn that only prefills the prompt of this one. It is not compacted, since a summary is output.

    Many templates reject a conversation without a user message, and a client that warms up often has none yet. A
    placeholder is added then.
    """
    items = spec.prompt_input.items
    if not any(isinstance(item, InputMessage) and item.role == "user" for item in items):
        items = (*items, InputMessage(role="user", content="."))
    prompt_input = structs.replace(spec.prompt_input, items=items)
    sampling = structs.replace(spec.sampling, max_tokens=1)
    return structs.replace(
        spec, prompt_input=prompt_input, sampling=sampling, compact_threshold=None, prefill_only=True
    )
