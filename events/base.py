"""Base classes of the stream events and of the input items."""

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """A stream event, emitted once. `sequence_number` counts from 0 by 1 within a response.

    No event can be part of a reference cycle, so the garbage collector skips the many that are stored (`gc=False`).
    """

    sequence_number: int


class ItemEvent(Event, frozen=True, kw_only=True):
    """An event of the item `item_id`, which is at `output_index` in the output."""

    item_id: str
    output_index: int


class InputItem(Struct, frozen=True, kw_only=True, tag_field="type"):
    """An item from before this turn. `id` may be one that this server never issued."""

    id: str | None = None
