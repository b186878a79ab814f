"""Pictures in prompts: their places in the text, the tokens that stand for them, and where these are among the ids.

A chat template writes one placeholder for each picture. Before the text is encoded, the placeholder is replaced by the
text that the model's processor gives for the picture, with one *soft token* for each row of its features. Nothing here
knows a model's family, and nothing reads a picture.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.harmony.rendered_prompt import ImageSpan, RenderError

_ID_KEYS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
"""Keys of a model's configuration that hold the id of its soft token."""
_NAME_KEYS = ("image_token", "boi_token")
"""Keys of the files of tokenizers and processors that name what a template writes for a picture."""
_SPLICE_PROBES = (("", ""), ("a b", "c d"), (" x ", "\n\n y"), ("\n", "\n"), ("\n\n", " "), ("\u2581a", "\u2581b"))
"""Texts around a trial run of soft tokens."""


ImageForm = Literal["expanded", "placeholder", "text"]


class PromptImage(Struct, frozen=True, kw_only=True):
    """A picture that the model can see."""

    key: bytes
    """32 bytes: identity of the prepared picture."""
    replacement: str = ""
    """Text in place of the placeholder, if it is expanded."""
    rows: int
    """Number of rows of its features, and of soft tokens in the replacement; 0 if it is not known."""
    form: ImageForm = "expanded"
    """`placeholder`: the placeholder stays, for an engine that expands it itself. `text`: the picture stands between
    two texts of the prompt (`RenderedPrompt.texts`), for an engine that takes prompts with pictures as text."""
    grid: tuple[int, ...] = ()
    """Time, height and width in patches, if the model has them."""


class ImageTokens(Struct, frozen=True, kw_only=True):
    """Tokens for pictures in a model's vocabulary."""

    soft_text: str
    soft_id: int
    """Token whose rows are replaced by features."""
    names: tuple[str, ...] = ()
    """Added tokens that the model's files name as placeholders."""


def read_image_tokens(
    config: Mapping[str, Any], files: Iterable[Mapping[str, Any]], added_tokens: Mapping[str, int]
) -> ImageTokens | None:
    """Returns the tokens for pictures from a model's files; None if it has none.

    `files` are the configurations of the tokenizer and the processor. Only added tokens count: these are broken up in
    every text of a client.
    """
    texts = {token: text for text, token in added_tokens.items()}
    soft_text = next((texts[config[key]] for key in _ID_KEYS if _is_token(config.get(key), texts)), None)
    if soft_text is None or not _can_be_broken(soft_text):
        return None
    found = (_token_text(each.get(key)) for file in files for each in _name_sources(file) for key in _NAME_KEYS)
    names = dict.fromkeys(name for name in found if name in added_tokens and _can_be_broken(name))
    return ImageTokens(soft_text=soft_text, soft_id=added_tokens[soft_text], names=tuple(names))


def _is_token(value: object, texts: Mapping[int, str]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in texts


def _name_sources(file: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    extra = file.get("extra_special_tokens")
    return [file, extra] if isinstance(extra, Mapping) else [file]


def _token_text(value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _can_be_broken(text: str) -> bool:
    """Tells whether the escaper breaks this token in the text of a client."""
    return len(text) > 1 and not text.isspace()


class ImageExpander:
    """Puts pictures into the texts of one vocabulary. `placeholder` is what the template writes for a picture.

    A run of soft tokens is encoded as one token, which is then repeated: encoding thousands of them takes long.
    """

    def __init__(self, tokens: ImageTokens, placeholder: str, placeholder_id: int) -> None:
        self._tokens, self._placeholder, self._placeholder_id = tokens, placeholder, placeholder_id
        self._run = re.compile(f"(?:{re.escape(tokens.soft_text)})+")

    def replace_placeholders(self, rendered: str, images: Sequence[PromptImage]) -> tuple[str, str, list[int]]:
        """Returns a rendered text with the pictures, the same with runs of soft tokens cut to one, and their lengths.

        Raises `RenderError` if the text has not one placeholder for each picture.
        """
        pieces = rendered.split(self._placeholder)
        if len(pieces) - 1 != len(images):
            found = f"{len(pieces) - 1} placeholders for {len(images)} images"
            raise RenderError(f"The model's chat template wrote {found}.")
        full, short, lengths = [pieces[0]], [pieces[0]], list[int]()
        for image, piece in zip(images, pieces[1:], strict=True):
            replacement = image.replacement if image.form == "expanded" else self._placeholder
            if image.form == "expanded":
                runs = [len(run[0]) // len(self._tokens.soft_text) for run in self._run.finditer(replacement)]
                if sum(runs) != image.rows:
                    raise RenderError(f"An image has {image.rows} rows, and {sum(runs)} tokens for them.")
                lengths += runs
            full += (replacement, piece)
            short += (self._run.sub(self._tokens.soft_text, replacement), piece)
        return "".join(full), "".join(short), lengths

    def repeat_soft_ids(self, ids: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Returns ids with each soft token repeated to the length of its run. Raises `RenderError` if they differ."""
        soft_id = self._tokens.soft_id
        if not lengths:
            return list(ids)
        places = [index for index, token in enumerate(ids) if token == soft_id]
        if len(places) != len(lengths):
            raise RenderError("The tokenizer joins the places of images, so the model cannot see them.")
        expanded, start = list[int](), 0
        for place, length in zip(places, lengths, strict=True):
            expanded += ids[start:place]
            expanded += [soft_id] * length
            start = place + 1
        return [*expanded, *ids[start:]]

    def find_images(self, tokens: Sequence[int], images: Sequence[PromptImage]) -> tuple[ImageSpan, ...]:
        """Returns where the pictures are among the ids, in order. Raises `RenderError` if the ids have other ones."""
        return find_spans(
            tokens,
            [
                ImageSpan(
                    key=image.key,
                    offset=0,
                    length=image.rows if image.form == "expanded" else 1,
                    rows=image.rows,
                    grid=image.grid,
                    soft_id=self._tokens.soft_id if image.form == "expanded" else self._placeholder_id,
                )
                for image in images
            ],
        )


def find_spans(tokens: Sequence[int], spans: Sequence[ImageSpan]) -> tuple[ImageSpan, ...]:
    """Returns the spans with their offsets and lengths among these ids. Raises `RenderError` if they are not there.

    Each picture has one soft token for each row, in order. Runs of two pictures may touch, and a picture's own may be
    interrupted by ends of rows. One that is a placeholder is shorter than its rows: it has a single token.
    """
    found, index = list[ImageSpan](), -1
    try:
        for span in spans:
            first = index = tokens.index(span.soft_id, index + 1)
            num_tokens = span.rows if 0 < span.rows <= span.length else span.length
            for _ in range(num_tokens - 1):
                index = tokens.index(span.soft_id, index + 1)
            found.append(
                ImageSpan(
                    key=span.key,
                    offset=first,
                    length=index + 1 - first,
                    rows=span.rows,
                    grid=span.grid,
                    soft_id=span.soft_id,
                )
            )
        rest = {span.soft_id for span in spans}.intersection(tokens[index + 1 :])
    except ValueError:
        rest = {-1}
    if rest:
        raise RenderError("The tokens for images in the prompt are not those of its images.")
    return tuple(found)


def can_repeat(tokens: ImageTokens, encode: Callable[[str], list[int]]) -> bool:
    """Tells whether a run of soft tokens has the ids of a single one, repeated, whatever text is around it."""
    soft = tokens.soft_text
    expander = ImageExpander(tokens, soft, tokens.soft_id)
    try:
        return all(
            expander.repeat_soft_ids(encode(f"{before}{soft}{after}"), [3]) == encode(f"{before}{soft * 3}{after}")
            for before, after in _SPLICE_PROBES
        )
    except RenderError:
        return False
