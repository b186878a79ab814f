"""Finds out in a handshake whether a server takes pictures as this model needs it, by sending a small one.

A server that does not know the fields of pictures ignores them, and one with other settings puts other tokens into the
prompt. So what counts is the prompt that it had: ours, with the tokens of the picture in the place of the placeholder.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.engine.fallbacks import Fallback
from antiphon.engine.remote.backend_apis.base import BackendApi, EngineKind
from antiphon.engine.remote.backend_apis.sglang_generate import SglangGenerateApi
from antiphon.engine.remote.backend_apis.vllm_generate import VllmGenerateApi
from antiphon.engine.remote.faults import clean_message
from antiphon.engine.remote.handshakes.probes import ProbeResult, ServerProbes
from antiphon.engine.remote.images.pictures import ImageProbe, is_expansion, takes_repeated_ids
from antiphon.engine.remote.options import RemoteModel, SurfaceChoice

GENERATE_REMEDY = "start vLLM 0.30 or later with --enable-scale-out, and without --limit-mm-per-prompt"
_OTHER_PROMPT = "it puts the tokens of an image into another prompt than ours"


class ImageAbility(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures on a server. `api` None: it takes none; `refusal` is the reason if the model could see."""

    api: BackendApi | None = None
    marker: str = ""
    """Text that stands for a picture in a prompt that is text."""
    adds_start: bool = False
    """True if the server itself puts the token that begins a text before such a prompt."""
    refusal: str = ""


def common_images(images: Sequence[ImageAbility]) -> dict[str, Any]:
    """Returns the fields of `EngineInfo` about pictures: their form if all engines take one, else the reason."""
    forms = {"none" if each.api is None else each.api.image_form for each in images}
    if len(forms) == 1 and "none" not in forms:
        return {"image_form": forms.pop(), "image_refusal": "", "fallbacks": ()}
    refusals = [each.refusal for each in images if each.refusal]
    if len(forms) > 1:
        refusals.append("the engines take images in different forms, or only some of them take any")
    refusal = next(iter(refusals), "")
    fallbacks = (Fallback("pictures", refusal),) if refusal else ()
    return {"image_form": "none", "image_refusal": refusal, "fallbacks": fallbacks}


async def probe_images(
    kind: EngineKind,
    probes: ServerProbes,
    model: RemoteModel,
    api: BackendApi,
    surface: SurfaceChoice,
    details: dict[str, Any],
) -> ImageAbility:
    """Returns how the server takes pictures. `api`: interface of its jobs; `details`: its own description.

    Raises `HandshakeError` if the server does not answer.
    """
    probe = model.image_probe
    if probe is None:
        return ImageAbility()
    if kind == "trtllm":
        return ImageAbility(refusal="TensorRT-LLM takes no images beside token ids")
    if kind == "llama.cpp":
        return await _probe_text(probes, probe, api, details)
    if not probe.tokens:
        return ImageAbility(refusal="the model's chat template writes no placeholder for images")
    if kind == "sglang":
        return await _probe_sglang(probes, probe, model.model_type)
    if surface == "completions":
        return ImageAbility(refusal="/v1/completions takes no images: use --engine-surface generate")
    return await _probe_vllm(probes, probe)


async def _probe_vllm(probes: ServerProbes, probe: ImageProbe) -> ImageAbility:
    api = VllmGenerateApi()
    result = await probes.run_image_probe(api, probe.tokens)
    if result.failure is not None:
        return ImageAbility(refusal=f"{_describe(result)}; {GENERATE_REMEDY}")
    if not result.prompt_ids or not result.has_placeholders:
        return ImageAbility(refusal=f"it does not tell the prompt with the tokens of an image; {GENERATE_REMEDY}")
    if not is_expansion(probe.tokens, probe.offset, result.prompt_ids):
        return ImageAbility(refusal=_OTHER_PROMPT)
    return ImageAbility(api=api)


async def _probe_sglang(probes: ServerProbes, probe: ImageProbe, model_type: str) -> ImageAbility:
    if not takes_repeated_ids(model_type):
        return ImageAbility(refusal=f"SGLang makes text of the token ids of {model_type or 'this model'} with images")
    api = SglangGenerateApi()
    result = await probes.run_image_probe(api, probe.tokens)
    if result.failure is not None:
        return ImageAbility(refusal=f"{_describe(result)}; start SGLang 0.5.13 or later")
    if result.prompt_tokens <= len(probe.tokens):
        return ImageAbility(refusal=_OTHER_PROMPT)
    return ImageAbility(api=api)


async def _probe_text(
    probes: ServerProbes, probe: ImageProbe, api: BackendApi, details: dict[str, Any]
) -> ImageAbility:
    """Sends one picture and two: the difference is a picture's tokens, so the rest of the count is the text's."""
    modalities, marker = details.get("modalities"), details.get("media_marker")
    if not isinstance(modalities, dict) or not modalities.get("vision") or not isinstance(marker, str) or not marker:
        return ImageAbility(refusal="it serves the model without a vision tower: start it with --mmproj")
    before, behind = probe.texts
    counts = []
    for texts in ((before, behind), (before, "", behind)):
        result = await probes.run_image_probe(api, probe.text_tokens, texts, marker)
        if result.failure is not None:
            return ImageAbility(refusal=_describe(result))
        counts.append(result.prompt_tokens)
    num_added = 2 * counts[0] - counts[1] - len(probe.text_tokens)
    if counts[1] <= counts[0] or num_added not in (0, 1):
        return ImageAbility(refusal=_OTHER_PROMPT)
    return ImageAbility(api=api, marker=marker, adds_start=num_added == 1)


def _describe(result: ProbeResult) -> str:
    message = "" if result.failure is None else clean_message(result.failure.message, max_chars=200)
    return f"it does not read a test image ({message})"
