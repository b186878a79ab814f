"""Steering: input for a response that is being generated, which a successor of it reads.

Each accepted steer ends in exactly one place: in the input of a successor, which begins when its response is created;
in the input of the client's next request, after `pending`; or in a `failed` event, which gives it back. Steers that are
queued when the connection ends are lost with it.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.websocket.frames import CreateFrame
from antiphon.events.builtin_calls import ApplyPatchCall, LocalShellCall, ShellCall
from antiphon.events.hosted import ToolSearchCall
from antiphon.events.inputs import AnyInput, InputMessage, InputOutput
from antiphon.events.items import CustomToolCall, FunctionCall
from antiphon.events.response import OutputItem, Response

MAX_STEERS = 16
"""Maximum number of steers that wait for the end of one response."""
MAX_STEER_BYTES = 256 << 10
"""Maximum size of the steers that wait for the end of one response."""
STEER_KEYS = frozenset({"type", "previous_response_id", "input"})
STEERING_MESSAGE_KEYS = frozenset({"type", "role", "content"})


class SteerError(Exception):
    """Raised for a steer that cannot be accepted. `code` is one of the API's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Steer(Struct, frozen=True, kw_only=True):
    """An accepted steer. `sent` is its input as the client sent it, `messages` its input as items."""

    id: str
    previous_response_id: str
    sent: Any
    messages: tuple[dict[str, Any], ...]
    num_bytes: int


class EndedResponse(Struct, frozen=True):
    """The end of a response, which a connection remembers to answer a steer that comes late."""

    response_id: str
    stream_id: str | None
    sequence_number: int
    status: str


class SteeredResponse:
    """A response of this connection that may be steered: its request, the steers that wait for its end."""

    def __init__(self, frame: CreateFrame, spec: TurnSpec, response_id: str) -> None:
        self.frame, self.response_id, self.stream_id = frame, response_id, frame.stream_id
        self._accepts_steers = not (
            spec.prefill_only or spec.compact or spec.compact_threshold or spec.base_response.conversation
        )
        self.steers: list[Steer] = []
        self.sequence_number = 0
        """Number of the latest event that was sent. Events about its steers repeat it."""

    def accept(self, sent: Any, messages: tuple[dict[str, Any], ...], num_bytes: int) -> Steer:
        """Adds a steer. Raises `SteerError`."""
        if not self._accepts_steers:
            raise SteerError("steering_not_supported", "This response cannot be steered.")
        if len(self.steers) == MAX_STEERS or self.num_bytes + num_bytes > MAX_STEER_BYTES:
            raise SteerError("too_many_pending_steers", f"At most {MAX_STEERS} steers may wait for a response.")
        steer = Steer(
            id=f"steer_{secrets.token_hex(16)}",
            previous_response_id=self.response_id,
            sent=sent,
            messages=messages,
            num_bytes=num_bytes,
        )
        self.steers.append(steer)
        return steer

    @property
    def num_bytes(self) -> int:
        """Size of all steers, as they were sent."""
        return sum(steer.num_bytes for steer in self.steers)

    def forget_request(self) -> None:
        """Lets go of the body of the request, which may be large: the steers wait for another request."""
        self.frame = structs.replace(self.frame, body={}, num_bytes=0)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of all steers, in the order in which they were sent."""
        return [message for steer in self.steers for message in steer.messages]

    def create_successor(self) -> CreateFrame:
        """Returns the request that continues the response with its steers and its settings."""
        body = {**self.frame.body, "previous_response_id": self.response_id, "input": []}
        return structs.replace(self.frame, body=body, num_bytes=self.num_bytes)


def read_steer(frame: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Returns the messages of a `response.steer` frame. Raises `SteerError`."""
    sent = frame.get("input")
    if unknown := sorted(frame.keys() - STEER_KEYS):
        raise SteerError("invalid_input", f"Unknown parameter: '{unknown[0][:80]}'.")
    if isinstance(sent, str):
        return ({"type": "message", "role": "user", "content": sent},)
    if not isinstance(sent, list) or not sent:
        raise SteerError("invalid_input", "The 'input' of a steer is a string or a list of user messages.")
    return tuple(_read_message(entry, f"input[{index}]") for index, entry in enumerate(sent))


def _read_message(entry: Any, path: str) -> dict[str, Any]:
    if not isinstance(entry, dict) or entry.keys() - STEERING_MESSAGE_KEYS or entry.get("type", "message") != "message":
        raise SteerError("invalid_input", f"'{path}' is no message with 'role' and 'content'.")
    try:
        item = read_item({**entry, "type": "message"}, path)
    except ApiError as error:
        raise SteerError("invalid_input", error.message) from None
    if not isinstance(item, InputMessage) or item.role != "user":
        raise SteerError("invalid_input", f"'{path}.role' must be 'user'.")
    return {**entry, "type": "message"}


def find_steer_error(ended: EndedResponse | None) -> SteerError:
    """Returns the error of a steer whose response is not being generated. `ended`: the response, if it has ended."""
    if ended is None:
        return SteerError("response_not_found", "The response was not created on this connection.")
    if ended.status in ("completed", "incomplete"):
        return SteerError("response_already_completed", "The response has ended.")
    return SteerError("response_not_active", "The response did not complete.")


def list_required_input(response: Response) -> list[dict[str, Any]]:
    """Returns the outputs that the client owes before the response can be continued, without their results."""
    return [stub for item in response.output if (stub := _find_stub(item)) is not None]


def _find_stub(item: OutputItem) -> dict[str, Any] | None:
    match item:
        case FunctionCall(is_async=True) | CustomToolCall(is_async=True):
            return None
        case FunctionCall():
            return {"type": "function_call_output", "call_id": item.call_id, "name": item.name}
        case CustomToolCall():
            return {"type": "custom_tool_call_output", "call_id": item.call_id}
        case ShellCall():
            return {"type": "shell_call_output", "call_id": item.call_id}
        case LocalShellCall():
            return {"type": "local_shell_call_output", "call_id": item.call_id}
        case ToolSearchCall(execution="client"):
            return {"type": "tool_search_output", "call_id": item.call_id, "execution": "client"}
        case ApplyPatchCall():
            return {"type": "apply_patch_call_output", "call_id": item.call_id}
        case _:
            return None


def move_steers_behind_outputs(spec: TurnSpec, num_steers: int) -> TurnSpec:
    """Returns the turn with its first input items, which are steers, behind the outputs that follow them.

    In the input, steers come first, as they were sent. In the prompt, outputs follow their calls: templates demand it.
    """
    steers, others = spec.input_items[:num_steers], spec.input_items[num_steers:]
    num_outputs = next((n for n, item in enumerate(others) if not isinstance(item, InputOutput)), len(others))
    if not num_steers or not num_outputs:
        return spec
    items = spec.prompt_input.items
    start = _find_item(items, steers[0])
    end = start + num_steers + num_outputs
    moved = (*items[:start], *others[:num_outputs], *steers, *items[end:])
    return structs.replace(spec, prompt_input=structs.replace(spec.prompt_input, items=moved))


def _find_item(items: Sequence[AnyInput], wanted: AnyInput) -> int:
    return next(index for index, item in enumerate(items) if item is wanted)


class SteerEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event about a steer. It is part of no log."""

    type: str
    sequence_number: int | UnsetType = UNSET
    steer: dict[str, Any]
    reason: str | None = None
    required_input: list[dict[str, Any]] | None = None
    error: dict[str, Any] | None = None
    stream_id: str | None = None


def write_accepted(steer: Steer, response: SteeredResponse) -> str:
    """Returns the event of an accepted steer."""
    return _write_event(response, "accepted", {"id": steer.id})


def write_pending(steer: Steer, response: SteeredResponse, required_input: list[dict[str, Any]]) -> str:
    """Returns the event of a steer that waits for the client's next request."""
    reason = "waiting_for_required_input"
    return _write_event(response, "pending", {"id": steer.id}, reason=reason, required_input=required_input)


def write_failed(
    error: SteerError,
    sent: Any,
    response_id: Any,
    response: SteeredResponse | EndedResponse | None,
    steer: Steer | None = None,
) -> str:
    """Returns the event that gives the input of a steer back. One that was never accepted has no id."""
    fields = {"id": steer.id, "input": sent} if steer else {"input": sent}
    body = {"type": "invalid_request_error", "code": error.code, "message": error.message}
    return _write_event(response, "failed", fields, response_id, error=body)


def _write_event(
    response: SteeredResponse | EndedResponse | None,
    kind: str,
    steer: dict[str, Any],
    response_id: Any = None,
    **fields: Any,
) -> str:
    event = SteerEvent(
        type=f"response.steer.{kind}",
        sequence_number=response.sequence_number if response else 0,
        steer={**steer, "previous_response_id": response.response_id if response else response_id},
        stream_id=response.stream_id if response else None,
        **fields,
    )
    return msgspec.json.encode(event).decode()
