"""Faults that change a stream wherever a value occurs: repeated ids, changed ids; broken arguments elsewhere."""

import msgspec

from antiphon.kit.faults.fault import WireFault
from antiphon.kit.faults.frames import EventFrame
from antiphon.kit.json_values import Json

DONE_TYPE = "response.function_call_arguments.done"
DELTA_TYPE = "response.function_call_arguments.delta"
CHANGED_SUFFIX = "_changed"
"""Suffix of an id that changes."""
NEUTRAL_KINDS = ("ping", "keepalive")
"""Events that may come between the fragments of a call."""


def break_arguments(arguments: str) -> str:
    """Returns the arguments of a call without their last character, which ends the object. Empty text stays so."""
    return arguments.rstrip()[:-1]


class StreamEditor:
    """Changes a stream frame by frame. `is_applied` is true once something was changed."""

    is_applied = False

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frames to write instead of this one."""
        return [frame.raw]

    def finish(self) -> list[bytes]:
        """Returns the frames that are still held back."""
        return []


class ArgumentsEditor(StreamEditor):
    """Breaks the arguments of the `number`-th function call in the events of Responses, Chat or Messages.

    Only the event after the arguments shows which fragment was the last one, so the latest one is held back.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._num_calls = 0
        self._call: str | int | None = None
        """Id of the call's item, or index of its block or fragments. None before the call."""
        self._held: list[EventFrame] = []
        self._num_dropped = 0

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frames to write instead of this one."""
        if frame.event is None or frame.kind in NEUTRAL_KINDS:
            if frame.data and frame.event is None:
                return [*self._end_arguments(), frame.raw]
            return self._hold_along(frame)
        self._find_call(frame.kind, frame.event)
        place = self._find_fragment(frame.event)
        if place is None:
            return [*self._end_arguments(), self._rewrite(frame)]
        owner, key = place
        released: list[EventFrame] = []
        if owner[key].strip():
            released, self._held = self._held, []
        self._held.append(frame)
        return [self._rewrite(each) for each in released]

    def finish(self) -> list[bytes]:
        """Returns the frames that are held back. The arguments that they end were cut anyway."""
        held, self._held = self._held, []
        return [self._rewrite(each) for each in held]

    def _hold_along(self, frame: EventFrame) -> list[bytes]:
        """Keeps a comment or a ping behind the fragments that are held back."""
        if self._held:
            self._held.append(frame)
            return []
        return [self._rewrite(frame)]

    def _find_call(self, kind: str, event: Json) -> None:
        """Counts the calls that begin, and remembers the one to break."""
        if kind == "response.output_item.added" and event["item"].get("type") == "function_call":
            self._count_call(event["item"].get("id"))
        elif kind == "content_block_start" and event["content_block"].get("type") == "tool_use":
            self._count_call(event.get("index"))
        elif "choices" in event:
            self._call = self._number - 1

    def _count_call(self, call: str | int | None) -> None:
        self._num_calls += 1
        if self._num_calls == self._number:
            self._call = call

    def _find_fragment(self, event: Json) -> tuple[Json, str] | None:
        """Returns the object and the key that hold a fragment of the call's arguments, or None."""
        if self._call is None:
            return None
        if event.get("type") == DELTA_TYPE and event.get("item_id") == self._call:
            return event, "delta"
        if event.get("type") == "content_block_delta" and event.get("index") == self._call:
            return (event["delta"], "partial_json") if "partial_json" in event["delta"] else None
        for choice in event.get("choices") or ():
            for fragment in (choice.get("delta") or {}).get("tool_calls") or ():
                function = fragment.get("function") or {}
                if choice.get("index") == 0 and fragment.get("index") == self._call and "arguments" in function:
                    return function, "arguments"
        return None

    def _end_arguments(self) -> list[bytes]:
        """Returns the frames that are held back, without the last character of the arguments."""
        held, self._held = self._held, []
        frames: list[bytes] = []
        for frame in held:
            place = None if frame.event is None else self._find_fragment(frame.event)
            if place is None or frame.event is None:
                frames.append(self._rewrite(frame))
                continue
            owner, key = place
            self.is_applied |= bool(owner[key].strip())
            owner[key] = break_arguments(owner[key])
            if not owner[key] and "sequence_number" in frame.event:
                self._num_dropped += 1  # an empty delta is illegal; the others move up
            else:
                frames.append(self._rewrite(frame, is_changed=True))
        return frames

    def _rewrite(self, frame: EventFrame, *, is_changed: bool = False) -> bytes:
        """Returns the frame with its new sequence number, and with broken arguments where it repeats them."""
        event = frame.event
        if event is None:
            return frame.raw
        if self._num_dropped and "sequence_number" in event:
            event["sequence_number"] -= self._num_dropped
            is_changed = True
        for owner in self._find_copies(frame.kind, event):
            owner["arguments"], is_changed = break_arguments(owner["arguments"]), True
            self.is_applied = True
        return frame.replace_event(event) if is_changed else frame.raw

    def _find_copies(self, kind: str, event: Json) -> list[Json]:
        """Returns the objects that repeat the call's whole arguments."""
        if not isinstance(self._call, str):
            return []
        items = [event.get("item"), *((event.get("response") or {}).get("output") or ())]
        owners = [item for item in items if isinstance(item, dict) and item.get("id") == self._call]
        if kind == DONE_TYPE and event.get("item_id") == self._call:
            owners.append(event)
        return [owner for owner in owners if owner.get("arguments")]


class RepeatedIdEditor(StreamEditor):
    """Gives the item after the `number`-th one its id, in all events and in the terminal response."""

    def __init__(self, number: int) -> None:
        self._index = number
        self._num_items = 0
        self._first_id = self._second_id = ""

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frame with the repeated id."""
        event = frame.event
        if event is None:
            return [frame.raw]
        if frame.kind == "response.output_item.added":
            self._num_items += 1
            if self._num_items == self._index:
                self._first_id = event["item"].get("id", "")
            elif self._num_items == self._index + 1:
                self._second_id, self.is_applied = event["item"].get("id", ""), True
        if self._second_id and _replace_id(event, self._second_id, self._first_id):
            return [frame.replace_event(event)]
        return [frame.raw]


class ChangedIdEditor(StreamEditor):
    """Gives the `number`-th item another id in the terminal response."""

    def __init__(self, number: int) -> None:
        self._index = number - 1

    def edit(self, frame: EventFrame) -> list[bytes]:
        """Returns the frame, with the changed id if it is the terminal one."""
        event = frame.event or {}
        output = (event.get("response") or {}).get("output") or []
        if len(output) <= self._index:
            return [frame.raw]
        output[self._index]["id"] += CHANGED_SUFFIX
        self.is_applied = True
        return [frame.replace_event(event)]


def _replace_id(event: Json, old_id: str, new_id: str) -> bool:
    """Replaces an item's id wherever an event has it. Returns whether it had it."""
    owners = [(event, "item_id"), (event.get("item") or {}, "id")]
    owners += [(item, "id") for item in (event.get("response") or {}).get("output") or ()]
    found = [(owner, key) for owner, key in owners if owner.get(key) == old_id]
    for owner, key in found:
        owner[key] = new_id
    return bool(found)


def create_editor(fault: WireFault) -> StreamEditor | None:
    """Returns the editor of a kind of fault, or None if it has none: it happens at a marked event."""
    number = fault.number or 1
    if fault.kind == "broken_arguments":
        return ArgumentsEditor(number)
    if fault.kind == "duplicate_id":
        return RepeatedIdEditor(number)
    return ChangedIdEditor(number) if fault.kind == "id_changed" else None


def break_json_reply(fault: WireFault, body: bytes) -> bytes:
    """Returns the body with broken arguments: of the `number`-th function call of a response or chat completion."""
    reply = msgspec.json.decode(body)
    owners = list(_find_arguments(reply))
    number = fault.number or 1
    if len(owners) < number:
        return body
    owner = owners[number - 1]
    owner["arguments"] = break_arguments(owner["arguments"])
    return msgspec.json.encode(reply)


def _find_arguments(reply: Json) -> list[Json]:
    """Returns the objects that have the arguments of calls, in order."""
    owners = [item for item in reply.get("output") or () if item.get("type") == "function_call"]
    for choice in (reply.get("choices") or ())[:1]:
        calls = (choice.get("message") or {}).get("tool_calls") or ()
        owners += [call["function"] for call in calls if "function" in call]
    return owners
