"""Types of fields that several endpoints share, and the fields of every request that samples."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.app.errors import invalid_type, invalid_value
from antiphon.app.requests.fields import Echoed, FieldRule, Honoured, RequestBody, refused
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.checks import require_key
from antiphon.events.tools import ShortName

MAX_FIELD_CHARS = 10_485_760
MAX_CHOICES = 128
MAX_TOOLS = 128
MAX_SEED = 2**63 - 1
MAX_INTEGER = 2**31 - 1
"""Largest integer of a field without a smaller bound. Larger ones could not be passed to the engine's process."""

PositiveInt = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
NumChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Text = Annotated[str, Meta(max_length=MAX_FIELD_CHARS)]
Label64 = Annotated[str, Meta(max_length=64)]
Label128 = Annotated[str, Meta(max_length=128)]
Label256 = Annotated[str, Meta(max_length=256)]
Label512 = Annotated[str, Meta(max_length=512)]
Objects = list[dict[str, Any]]
Metadata = Annotated[dict[Label64, Label512], Meta(max_length=16)]
StopString = Annotated[str, Meta(max_length=4096)]


def _check_stop(value: str | list[str], path: str) -> None:
    """Refuses an empty stop string, which would match everywhere."""
    if "" in ([value] if isinstance(value, str) else value):
        raise invalid_value(path, f"Invalid '{path}': a stop string must not be empty.")


StopStrings = Annotated[StopString | Annotated[list[StopString], Meta(max_length=16)], Checked(_check_stop)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenBias = Annotated[dict[Annotated[str, Meta(pattern=r"^[0-9]{1,9}\Z")], Bias], Meta(max_length=1024)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "priority", "scale", "fast", "ultrafast"]
Verbosity = Literal["low", "medium", "high"]
ToolObjects = Annotated[Objects, Meta(max_length=MAX_TOOLS)]


class CacheOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of OpenAI's prompt cache."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


class PlainTextFormat(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object. Other servers mean by a `schema` the same as by `json_schema`."""

    schema: dict[str, Any] | None = None


class JsonSchemaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A named JSON Schema."""

    name: ShortName
    schema: dict[str, Any]
    description: Text | None = None
    strict: bool | None = None


def check_tool_choice(value: Any, path: str) -> None:
    """Checks that an object that names tools has a `type`."""
    if isinstance(value, dict) and not isinstance(require_key(value, "type", path), str):
        raise invalid_type(f"{path}.type", "a string", value["type"])


ToolsField = Annotated[ToolObjects | None, FieldRule("honoured", "At most 128 tools; see below for the types.")]
ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"] | dict[str, Any], Checked(check_tool_choice)] | None,
    FieldRule(
        "honoured",
        "`auto`, `none`, `required`, a named tool, or `allowed_tools`. Enforced in sampling.",
    ),
]
ParallelCallsField = Annotated[
    bool | None, FieldRule("honoured", "False: the turn ends after the first complete call.")
]
CacheRetentionField = Annotated[
    Literal["in_memory", "24h"] | None, FieldRule("accepted", "A cache hint without effect here.")
]
CacheOptionsField = Annotated[CacheOptions | None, FieldRule("accepted", "A cache hint without effect here.")]
ModerationField = Annotated[Any, refused("Moderation is not supported.")]


class SampledBody(RequestBody, frozen=True, kw_only=True):
    """Fields of every request that samples, but for those of Messages."""

    model: Honoured[Label256] = None
    """Required. A name from `GET /v1/models`; any other name returns 404."""
    stream: Honoured[bool] = None
    """Sends server-sent events instead of one JSON object."""
    user: Echoed[Label512] = None
    """At most 512 characters."""
    temperature: Honoured[Annotated[float, Meta(ge=0, le=2)]] = None
    """0 to 2; default: the model's own value. 0 selects greedy decoding."""
    top_p: Honoured[Fraction] = None
    """0 to 1; default: the model's own value."""
    presence_penalty: Honoured[Penalty] = None
    """-2 to 2; applies to generated tokens."""
    frequency_penalty: Honoured[Penalty] = None
    """-2 to 2; applies to generated tokens."""
    top_k: Honoured[Annotated[int, Meta(ge=-1, le=1_000_000)]] = None
    """Not in OpenAI's API. Samples from the k most likely tokens; 0 and -1 turn it off."""
    min_p: Honoured[Fraction] = None
    """Not in OpenAI's API. Minimum probability of a token, relative to the most likely one."""
    repetition_penalty: Honoured[Annotated[float, Meta(ge=0.01, le=10)]] = None
    """Not in OpenAI's API. 0.01 to 10; applies to prompt and generated tokens."""
    seed: Honoured[Annotated[int, Meta(ge=-MAX_SEED - 1, le=MAX_SEED)]] = None
    """The same seed gives the same random numbers."""
    logit_bias: Honoured[TokenBias] = None
    """Maps token ids, as strings, to a bias from -100 to 100; at most 1024 entries."""
    stop: Honoured[StopStrings] = None
    """A string or up to 16 strings. Only the text for the user is searched; a match is not returned. Ignored if the
    text must be JSON."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, of which one may be sent as a string."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
