"""The prompt with one picture that the handshake with an engine on another server sends."""

from antiphon.engine.remote.images.pictures import ImageProbe
from antiphon.events.inputs import InputImage, InputMessage, InputText
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.image_tokens import ImageForm, PromptImage
from antiphon.harmony.prompt.templates.template_renderer import PROBE_TIME
from antiphon.harmony.rendered_prompt import RenderedPrompt, RenderError

_PROBE_IMAGE = InputImage(image_url="probe:")
_ITEMS = (InputMessage(role="user", content=(_PROBE_IMAGE, InputText(text="What is this?"))),)


def build_image_probe(model_format: ModelFormat) -> ImageProbe | None:
    """Returns the prompt, as tokens and as texts; None for a model that has no tokens for pictures."""
    shows_images = "user" in model_format.image_roles
    if not shows_images and not model_format.image_refusal:
        return None
    try:
        as_text = _render(model_format, "text")
        as_tokens = _render(model_format, "placeholder") if shows_images else None
    except RenderError:
        return None
    before, behind = as_text.texts
    probe = ImageProbe(texts=(before, behind), text_tokens=as_text.tokens)
    if as_tokens is None:
        return probe
    return ImageProbe(
        tokens=as_tokens.tokens,
        offset=as_tokens.media[0].offset,
        texts=probe.texts,
        text_tokens=probe.text_tokens,
    )


def _render(model_format: ModelFormat, form: ImageForm) -> RenderedPrompt:
    images: dict[tuple[str, str | None], PromptImage] = {("probe:", None): PromptImage(key=b"", rows=1, form=form)}
    return model_format.render_prompt(PromptInput(items=_ITEMS, images=images), now=PROBE_TIME)
