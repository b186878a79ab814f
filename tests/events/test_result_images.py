"""Placeholders of pictures in the outputs of tools: what is one, and what is shown in its place."""

import pytest

from antiphon.app.turn_types.blob_urls import BlobReference, find_blobs, format_blob_url
from antiphon.events.hosted_inputs import InputMcpCall
from antiphon.events.inputs import InputImage, InputText
from antiphon.events.result_images import hide_images, split_output, write_placeholder

REFERENCE = BlobReference(bytes(range(32)), "image/png", 5)
PLACEHOLDER = write_placeholder(REFERENCE.media_type, REFERENCE.size, REFERENCE.sha256)
IMAGE = InputImage(image_url=format_blob_url(REFERENCE))


def test_placeholders_become_pictures() -> None:
    assert split_output(PLACEHOLDER) == (IMAGE,)
    text = f"a\n{PLACEHOLDER}\n{PLACEHOLDER}\nb c"
    assert split_output(text) == (InputText(text="a"), IMAGE, IMAGE, InputText(text="b c"))
    assert hide_images(text) == "a\n[image: image/png]\n[image: image/png]\nb c"
    assert hide_images(PLACEHOLDER, "not shown") == "[image: image/png, not shown]"


def test_items_refer_to_their_pictures() -> None:
    item = InputMcpCall(server_label="kit", name="read", arguments="{}", output=f"a {PLACEHOLDER}")
    assert list(find_blobs((item,))) == [REFERENCE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "[image: image/png]",
        PLACEHOLDER[:-1],
        PLACEHOLDER.upper(),
        PLACEHOLDER.replace("image/png", "image/png\n"),
        PLACEHOLDER.replace("image/png", "text/x;charset=y"),
        PLACEHOLDER.replace(", 5 ", ", -5 "),
        PLACEHOLDER.replace(", 5 ", f", {'5' * 16} "),
        PLACEHOLDER.replace("00", "0", 1),
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert split_output(text) == text and hide_images(text) == text
