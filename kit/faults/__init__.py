"""Faults on demand: ways to break a reply, so that a client's handling of them can be tested.

A script's `[[reply]]` and a cassette's `[[exchange]]` name one fault each:

    fault = { kind = "cut", at = "response.output_text.delta", number = 2, times = 1 }

| kind               | what the client sees                                              | finding of the checker   |
|--------------------|-------------------------------------------------------------------|--------------------------|
| `cut`              | the stream ends properly after the marked event, with items open  | `terminal-missing`       |
| `reset`            | the connection is reset after the marked event (TCP RST)          | `terminal-missing`       |
| `stall`            | silence after the marked event, for `seconds` or for ever         | none, or as `cut`        |
| `failed`           | `error` and `response.failed` in place of what follows the mark   | none: it is legal        |
| `status`           | an HTTP status with `code`, `message` and `retry_after`           | none: there is no stream |
| `broken_arguments` | a call's arguments without their end, everywhere in the reply     | `arguments-not-json`     |
| `duplicate_id`     | the item after the marked one has its id, everywhere in the reply | `item-id-repeated`       |
| `wrong_order`      | the marked event after the one that follows it                    | `sequence-gap`           |
| `duplicate_event`  | the marked event twice                                            | `sequence-repeated`      |
| `drop_event`       | the marked event never comes                                      | `sequence-gap`           |
| `split_frame`      | the marked event in two writes with a pause of `seconds`          | none: it is legal        |
| `id_changed`       | an item has another id in the terminal response                   | `output-id-changed`      |

The marked event is the `number`-th of the type `at`, from 1; without `at`, of those that carry generated text.
`times` limits the fault to so many requests: with 1, the client's retry succeeds.

Example: `FaultInjector(fault)` takes one frame after the other, and returns what to write instead.
"""

from antiphon.kit.faults.edits import break_json_reply
from antiphon.kit.faults.fault import CountedFault, FaultError, WireFault, parse_fault
from antiphon.kit.faults.frames import split_frames
from antiphon.kit.faults.injector import (
    CloseConnection,
    FaultInjector,
    PauseWriting,
    ResetConnection,
    WireAction,
    WriteBytes,
    apply_fault,
)

__all__ = [
    "CloseConnection",
    "CountedFault",
    "FaultError",
    "FaultInjector",
    "PauseWriting",
    "ResetConnection",
    "WireAction",
    "WireFault",
    "WriteBytes",
    "apply_fault",
    "break_json_reply",
    "parse_fault",
    "split_frames",
]
