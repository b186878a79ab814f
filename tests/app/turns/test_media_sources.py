"""URLs of images and files in a request: fetched from hosts that the operator allows, and named in errors."""

import httpx2
import pytest

from antiphon.app.context import MediaOptionError, read_allowed_hosts
from antiphon.app.errors import ApiError
from antiphon.app.options.settings import Settings
from antiphon.app.requests.media.sent_media import MediaTaker
from antiphon.app.requests.responses.input_items import read_input
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.turn_types.blob_urls import parse_blob_url
from antiphon.app.turns.media.resolver import MediaResolver
from antiphon.events.inputs import AnyInput, InputFile, InputMessage
from tests.app.outbound.web import Web

URL = "https://pictures.example/files/a%20b.txt?secret=1"


async def read_items(url: str) -> tuple[tuple[AnyInput, ...], dict[bytes, bytes]]:
    """Returns the items with a file of this URL, and the contents to store."""
    answers = {
        URL: httpx2.Response(200, content=b"alpha"),
        "https://pictures.example/gone": httpx2.Response(404),
    }
    taker = MediaTaker("responses", "items", Settings(), refused=False)
    entries = taker.take_entries([{"role": "user", "content": [{"type": "input_file", "file_url": url}]}])
    items = read_input(entries, lambda _: None, "items").items
    store = MemoryStore()
    try:
        resolver = MediaResolver(store, Settings(), fetcher=Web(answers).create_fetcher("pictures.example"))
        read, blobs = await resolver.read_items(items, taker.taken, "")
    finally:
        await store.close()
    return read, dict(blobs)


async def test_a_file_is_fetched_once_and_keeps_its_url() -> None:
    [item], blobs = await read_items(URL)
    assert isinstance(item, InputMessage)
    [part] = item.content
    assert isinstance(part, InputFile)
    assert (part.file_url, part.filename) == (URL, "a b.txt")
    reference = parse_blob_url(part.file_data)
    assert reference is not None
    assert (reference.media_type, reference.source_url) == ("text/plain", URL)
    assert blobs == {reference.sha256: b"alpha"}


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        (
            "https://pictures.example/gone",
            "failed_to_download_file",
            "Error while downloading https://pictures.example/gone. Upstream status code: 404.",
        ),
        (
            "https://other.example/a.txt",
            "invalid_file_url",
            (
                "'items[0].content[0].file_url': this server fetches no URLs from 'other.example'. Send a data URL or a "
                "file_id, or ask its operator for --allow-image-host."
            ),
        ),
    ],
)
async def test_faults_of_urls_name_the_field(url: str, code: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read_items(url)
    assert (caught.value.status, caught.value.code, caught.value.message) == (400, code, message)
    assert caught.value.param == "items[0].content[0].file_url"


def test_every_host_needs_an_option_of_its_own() -> None:
    with pytest.raises(MediaOptionError, match="--allow-any-image-host"):
        read_allowed_hosts(Settings(image_hosts=("*",)))
    [host] = read_allowed_hosts(Settings(image_hosts=("*",), allow_any_image_host=True))
    assert (host.schemes, host.port) == ({"https"}, 443)
