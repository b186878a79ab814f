"""The items of a conversation as every prompt shows them: messages, reasoning, calls of functions and custom tools."""

from collections.abc import Sequence

from antiphon.events.inputs import AnyInput
from antiphon.harmony.prompt.async_calls import show_pending_calls
from antiphon.harmony.prompt.builtin_items import show_builtin_calls
from antiphon.harmony.prompt.hosted_items import show_hosted_items
from antiphon.harmony.tools import ToolTable


def show_items(items: Sequence[AnyInput], tools: ToolTable) -> tuple[AnyInput, ...]:
    """Returns the items with those of hosted and built-in tools as calls and outputs, and pending calls answered."""
    return show_builtin_calls(show_pending_calls(show_hosted_items(items), tools), tools)
