"""Compactions: the request for a summary, and the content of the item that takes the place of a conversation.

The content holds the summary and the newest items as they are, so a client that drops everything before the item loses
nothing. Content without the mark was written by an earlier version: it is a summary.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.events.inputs import AdditionalToolsInput, AnyInput, InputMessage, InputToolSearchOutput
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.builtin_items import begins_conversation
from antiphon.harmony.prompt.messages import is_instruction

COMPACTION_PROMPT = (
    "Our conversation is about to be cut short: the next turn will see none of the above, only what you write now. "
    "Write what it needs: what the user wants, what was decided and done, with names, paths, ids and numbers as they "
    "are, what is still open, and what to do next. Write nothing else, and call no tool."
)
"""Prompt that asks the model for the summary of a conversation that is to be compacted."""
MAX_SUMMARY_TOKENS = 8192
"""Limit of a summary without one. The client sees no text meanwhile, and would wait for a model that does not end."""
_INTRODUCTION = "What was said before this point was left out. A summary of it, written to go on from:\n\n"
_COMPACTION_MARK = "antiphon.compaction.1\n"


class CompactedConversation(Struct, frozen=True, kw_only=True):
    """A conversation after its compaction. An empty `summary` means that nothing was left out."""

    summary: str
    items: tuple[AnyInput, ...]


def ask_for_summary(prompt_input: PromptInput) -> PromptInput:
    """Returns the conversation with a request for its summary.

    Its prompt begins like that of the conversation, tools included, so that a prefix cache holds nearly all of it; but
    no tool can be called, and no form of the text is required.
    """
    return structs.replace(
        prompt_input,
        items=(*prompt_input.items, InputMessage(role="user", content=COMPACTION_PROMPT)),
        tool_choice="none" if prompt_input.tool_choice == "none" else "auto",
        allowed_tools=None,
        forbids_calls=True,
        output_constraint=None,
    )


def encode_compacted(conversation: CompactedConversation) -> str:
    """Returns the content of a compaction, which is still to be encrypted."""
    return _COMPACTION_MARK + msgspec.json.encode(conversation).decode()


def expand_compacted(content: str, before: Sequence[AnyInput]) -> tuple[AnyInput, ...]:
    """Returns the items that a compaction with this decrypted content stands for, in place of those `before` it.

    Instructions are those before it if there are any, since the client may have changed them. Tools that were added
    stay. Raises `ValueError` for content that is damaged.
    """
    if not content.startswith(_COMPACTION_MARK):
        return (*before, summary_message(content))
    try:
        compacted = msgspec.json.decode(content.removeprefix(_COMPACTION_MARK), type=CompactedConversation)
    except msgspec.DecodeError as error:
        raise ValueError("The content is not a compacted conversation.") from error
    instructions = tuple(filter(is_instruction, before)) or tuple(filter(is_instruction, compacted.items))
    tools = [item for item in before if isinstance(item, AdditionalToolsInput)]
    added = (item for item in compacted.items if isinstance(item, AdditionalToolsInput))
    tools += [item for item in added if not any(item.tools == each.tools for each in tools)]
    summary = (summary_message(compacted.summary),) if compacted.summary else ()
    return (*instructions, *tools, *summary, *(item for item in compacted.items if not outlasts_compaction(item)))


def summary_message(summary: str) -> InputMessage:
    """Returns the message that shows a summary to the model."""
    return InputMessage(role="user", content=_INTRODUCTION + summary)


def is_summary(item: AnyInput) -> bool:
    """Tells whether an item is the summary of an earlier compaction."""
    return isinstance(item, InputMessage) and isinstance(item.content, str) and item.content.startswith(_INTRODUCTION)


def outlasts_compaction(item: AnyInput) -> bool:
    """Tells whether an item counts for all of the conversation: instructions and added tools."""
    return not begins_conversation(item)


def _undefer(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns the definition of a tool, also of a namespace, without the mark that a search has to find it."""
    kept = {key: value for key, value in tool.items() if key != "defer_loading"}
    return {**kept, "tools": list(map(_undefer, kept["tools"]))} if kept.get("type") == "namespace" else kept


def compact_items(items: Sequence[AnyInput], kept: Sequence[AnyInput], summary: str) -> CompactedConversation:
    """Returns the conversation of `items` as its summary and the items `kept`. Tools that were loaded before stay."""
    kept_calls = {item.call_id for item in kept if isinstance(item, InputToolSearchOutput)}
    lost = [item for item in items if isinstance(item, InputToolSearchOutput) and item.call_id not in kept_calls]
    loaded = [AdditionalToolsInput(tools=tuple(map(_undefer, item.tools))) for item in lost]
    return CompactedConversation(summary=summary, items=(*loaded, *kept))
