"""Makes what a core needs for pictures from a optimized model and its vision tower."""

import logging

import msgspec
from transformers import PreTrainedModel

from antiphon.engine.checkpoint.vision_families import find_two_way_layers, read_soft_ids
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.media.encoder import ImageEncoder
from antiphon.engine.media.image_scheduler import ImageScheduler
from antiphon.engine.media.vision_tower import VisionTower
from antiphon.engine.protocol import EngineInfo

log = logging.getLogger(__name__)


def describe_images(info: EngineInfo, model: PreTrainedModel, tower: VisionTower | None, refusal: str) -> EngineInfo:
    """Adds what the engine does with pictures, or why it takes none. Tokens that stand for them are suppressed."""
    if refusal:
        report_fallback(log, "pictures", "%s", refusal)
    if tower is None:
        return msgspec.structs.replace(info, image_refusal=refusal)
    soft_ids = tuple(token for token in _read_soft_ids(model) if token < info.vocab_size)
    suppressed = tuple(dict.fromkeys((*info.suppressed_ids, *soft_ids)))
    return msgspec.structs.replace(info, image_form="expanded", soft_ids=soft_ids, suppressed_ids=suppressed)


def create_image_scheduler(
    model: PreTrainedModel, forward: ForwardPass, tower: VisionTower, max_bytes: int
) -> ImageScheduler:
    """Returns what gets the features of pictures. The tower must be attached."""
    assert isinstance(forward, VarlenForward)
    two_way = forward.two_way_layers = find_two_way_layers(model.config)
    encoder = ImageEncoder(model, tower.modules)
    soft_ids = _read_soft_ids(model)[:1]
    return ImageScheduler(
        model,
        encoder,
        soft_ids=soft_ids,
        two_way=bool(two_way),
        alignment=forward.prompt_alignment,
        max_bytes=max_bytes,
    )


def _read_soft_ids(model: PreTrainedModel) -> tuple[int, ...]:
    return read_soft_ids(lambda name: getattr(model.config, name, None))
