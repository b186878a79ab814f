"""Tells which models see images, and takes the images and files out of request bodies."""

from typing import Any, TypeVar

from msgspec import Struct, structs

from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.errors import MediaApi
from antiphon.app.requests.media.sent_media import MediaTaker, SentMedia
from antiphon.engine.protocol import EngineInfo

AnyBody = TypeVar("AnyBody", bound=Struct)


def sees_images(model: ServedModel, settings: Settings) -> bool:
    """Tells whether images reach a loaded model: its engine computes them, and its template has a place for them."""
    return shows_images(model, model.engine.info, settings)


def shows_images(model: ServedModel, info: EngineInfo, settings: Settings) -> bool:
    """Tells whether images reach a model whose engine may be unloaded. `info` is that of the loaded engine."""
    has_place = info.image_form == "text" or "user" in model.format.image_roles
    return settings.images == "auto" and info.image_form != "none" and has_place


def explain_blindness(model: ServedModel, info: EngineInfo) -> str:
    """Returns in one line why a model that could see does not; empty if it sees, or could not."""
    return info.image_refusal or (model.format.image_refusal if info.image_form != "none" else "")


def refuses_media(model: ServedModel, settings: Settings) -> bool:
    """Tells whether images and files for the model are an error. Otherwise, it gets them or a placeholder."""
    return settings.unsupported_media == "refuse" and not sees_images(model, settings)


def take_media(
    api: MediaApi, body: AnyBody, field: str, model: ServedModel, settings: Settings
) -> tuple[AnyBody, tuple[SentMedia, ...]]:
    """Returns a body without the bytes of the images and files in the entries of `field`, and these.

    Raises `ApiError` 400.
    """
    entries: Any = getattr(body, field)
    if not isinstance(entries, list):
        return body, ()
    taker = MediaTaker(api, field, settings, refused=refuses_media(model, settings))
    return structs.replace(body, **{field: taker.take_entries(entries)}), tuple(taker.taken)
