"""Settings of a conversation that `configuration_update` items set, for their own and for all later responses."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from antiphon.app.errors import missing_field
from antiphon.app.requests.fields import decode_value
from antiphon.app.requests.fields.common import Effort
from antiphon.app.requests.responses.body import AnyTextFormat, ReasoningSettings, ResponsesBody, TextSettings
from antiphon.events.inputs import AnyInput, ConfigurationUpdate


class ReasoningUpdate(Struct, frozen=True):
    """An update of the reasoning settings. Its other keys are ignored, as those of items are."""

    effort: Effort | None = None


class TextUpdate(Struct, frozen=True):
    """An update of the text settings."""

    format: AnyTextFormat | None = None


class Configuration(Struct, frozen=True, kw_only=True):
    """Settings in force. `format` is JSON as the client wrote it."""

    effort: Effort | None = None
    format: dict[str, Any] | None = None


def check_update(item: ConfigurationUpdate, path: str) -> None:
    """Checks an update. Raises `ApiError` 400 for a malformed value, and for one that sets nothing."""
    configuration = read_configuration([item], path)
    if configuration == Configuration():
        raise missing_field(f"{path}.reasoning.effort" if item.reasoning is not None else f"{path}.reasoning")


def read_configuration(items: Iterable[AnyInput], path: str = "input") -> Configuration:
    """Returns the last value of each setting among the updates. `path`: that of an update that is checked."""
    configuration = Configuration()
    for item in items:
        if isinstance(item, ConfigurationUpdate):
            effort = decode_value(item.reasoning or {}, ReasoningUpdate, f"{path}.reasoning").effort
            if effort is not None:
                configuration = structs.replace(configuration, effort=effort)
            if decode_value(item.text or {}, TextUpdate, f"{path}.text").format is not None and item.text is not None:
                configuration = structs.replace(configuration, format=item.text["format"])
    return configuration


def apply_updates(
    body: ResponsesBody, sent: Mapping[str, Any], items: Iterable[AnyInput], sent_items: Iterable[AnyInput]
) -> tuple[ResponsesBody, Mapping[str, Any]]:
    """Returns a request with the settings in force, and its JSON with the text settings in force.

    `items` are those of the whole conversation, of which the request sent `sent_items`. An update among the latter
    comes before the setting of the request itself, and that before an update of an earlier turn.
    """
    earlier, own = read_configuration(items), read_configuration(sent_items)
    reasoning, text = body.reasoning or ReasoningSettings(), body.text or TextSettings()
    sent_text = dict(sent.get("text") or {})
    text_format = own.format or sent_text.get("format") or earlier.format
    if text_format is not None:
        sent_text["format"] = text_format
        text = structs.replace(text, format=decode_value({"format": text_format}, TextUpdate, "text").format)
    reasoning = structs.replace(reasoning, effort=own.effort or reasoning.effort or earlier.effort)
    return structs.replace(body, reasoning=reasoning, text=text), {**sent, "text": sent_text}
