"""What all stream events share."""

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """One thing that happened, said once. `sequence_number` counts from 0 by 1 within a response."""

    sequence_number: int


class ItemEvent(Event, frozen=True, kw_only=True):
    """Something that happened to the item `item_id`, which stands at `output_index` of the output."""

    item_id: str
    output_index: int
