"""What all stream events share."""

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """One thing that happened, said once. `sequence_number` counts from 0 by 1 within a response.

    No event can be part of a cycle, so the garbage collector need not look at the many that are kept (`gc=False`).
    """

    sequence_number: int


class ItemEvent(Event, frozen=True, kw_only=True):
    """Something that happened to the item `item_id`, which stands at `output_index` of the output."""

    item_id: str
    output_index: int
