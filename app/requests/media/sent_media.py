"""Finds the images and files of a request, and replaces their bytes by references.

The rest of the server never sees a data URL: items, histories, the log and the store hold blob URLs. The bytes are
decoded from base64, and nothing else is done with them here.

Example: `{"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}` becomes
`{"type": "input_image", "image_url": "blob:sha256-4c4b…;image/png;8"}`, and the eight bytes are in `SentMedia.sent`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.app.errors import ApiError, missing_field
from antiphon.app.options.settings import Settings
from antiphon.app.requests.fields.checks import check_choice
from antiphon.app.requests.media.data_urls import SentData, is_data_url, read_base64, read_data_url
from antiphon.app.requests.media.errors import (
    MESSAGES_IMAGE_BYTES,
    MediaApi,
    MediaPlace,
    large_messages_image,
    refused_media,
    too_many_images,
    wrong_size,
)
from antiphon.app.requests.media.urls import check_url
from antiphon.app.turn_types.blob_urls import format_blob_url

IMAGE_DETAILS = ("low", "high", "auto", "original")
FILE_DETAILS = ("low", "high", "auto")
MIB = 1 << 20
Sent = Mapping[str, Any]


class SentMedia(Struct, frozen=True, kw_only=True):
    """An image or a file of a request."""

    place: MediaPlace
    source: str
    """Blob URL, URL or file id, as the item holds it."""
    is_file_id: bool = False
    sent: SentData | None = None
    """The bytes; None if the request names a file or a URL."""
    media_type: str | None = None
    """Type that the request gives, where another format is an error."""
    downsize: bool = False
    """True if an image beyond the limits of `/v1/messages` is scaled down instead of refused."""


class MediaTaker:
    """Takes the images and files out of one request. `taken` has them in order.

    `refused`: the server refuses all. Raises `ApiError` 400 for each fault that shows without reading an image.
    """

    def __init__(self, api: MediaApi, param: str, settings: Settings, *, refused: bool) -> None:
        self._api, self._param, self._settings, self._refused = api, param, settings, refused
        self.taken: list[SentMedia] = []
        self._num_images = 0

    def take_entries(self, entries: Sequence[Any]) -> list[Any]:
        """Returns items or messages without the bytes of their images and files. Malformed ones stay as they are."""
        return [self._take_entry(entry, self._index(self._param, index)) for index, entry in enumerate(entries)]

    def _index(self, path: str, index: int) -> str:
        return f"{path}.{index}" if self._api == "messages" else f"{path}[{index}]"

    def _take_entry(self, entry: Any, path: str) -> Any:
        if not isinstance(entry, dict):
            return entry
        changed: dict[str, Any] = {}
        for key in ("content", "output"):
            value = entry.get(key)
            if isinstance(value, list):
                changed[key] = self._take_parts(value, f"{path}.{key}")
            elif isinstance(value, dict) and entry.get("type") == "computer_call_output":
                changed[key] = self._take_screenshot(value, f"{path}.{key}")
        return {**entry, **changed} if changed else entry

    def _take_parts(self, parts: Sequence[Any], path: str) -> list[Any]:
        return [self._take_part(part, self._index(path, index)) for index, part in enumerate(parts)]

    def _take_part(self, part: Any, path: str) -> Any:
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        if self._api == "messages":
            return self._take_block(part, kind, path)
        match kind:
            case "input_image":
                return self._take_input_image(part, path)
            case "input_file":
                return self._take_input_file(part, path)
            case "image_url":
                return self._take_chat_image(part, path)
            case "file" if isinstance(part.get("file"), dict):
                return {**part, "file": self._take_input_file(part["file"], f"{path}.file")}
        return part

    # The OpenAI APIs

    def _take_input_image(self, part: Sent, path: str) -> Sent:
        self._refuse(path)
        url, file_id = part.get("image_url"), part.get("file_id")
        if url is not None and file_id is not None:
            raise _several_sources(path, "image_url", "file_id")
        if isinstance(file_id, str):
            self._add_file_id(self._place(f"{path}.file_id"), file_id)
        elif url is None and file_id is None:
            raise missing_field(f"{path}.image_url")
        elif isinstance(url, str):
            part = {**part, "image_url": self._take_url(url, self._place(f"{path}.image_url"))}
        self._check_detail(part, f"{path}.detail", IMAGE_DETAILS)
        return part

    def _take_screenshot(self, output: Sent, path: str) -> Sent:
        """Takes a screenshot. One without an image failed, which is no fault of the request."""
        failed = not output.get("image_url") and output.get("file_id") is None
        return output if failed else self._take_input_image(output, path)

    def _take_chat_image(self, part: Sent, path: str) -> Sent:
        self._refuse(path)
        image = part.get("image_url")
        if isinstance(image, str):
            return {**part, "image_url": self._take_url(image, self._place(f"{path}.image_url"))}
        if not isinstance(image, dict) or not isinstance(image.get("url"), str):
            return part
        url = self._take_url(image["url"], self._place(f"{path}.image_url.url"))
        self._check_detail(image, f"{path}.image_url.detail", IMAGE_DETAILS)
        return {**part, "image_url": {**image, "url": url}}

    def _take_input_file(self, part: Sent, path: str) -> Sent:
        sources = [key for key in ("file_data", "file_id", "file_url") if part.get(key) is not None]
        if not sources:
            raise missing_field(f"{path}.file_data")
        if len(sources) > 1:
            raise _several_sources(path, *sources)
        key, value = sources[0], part[sources[0]]
        self._check_detail(part, f"{path}.detail", FILE_DETAILS)
        place = self._place(f"{path}.{key}", is_image=False)
        if not isinstance(value, str):
            return part
        if key == "file_id":
            self._add_file_id(place, value)
            return part
        if key == "file_url":
            self._add_url(place, value)
            return part
        sent = read_data_url(value, place) if is_data_url(value) else read_base64(value, "", place)
        return {**part, "file_data": self._add_data(place, sent)}

    def _take_url(self, url: str, place: MediaPlace) -> str:
        """Returns the URL of an image as the item holds it."""
        if not is_data_url(url):
            self._add_url(place, url)
            return url
        self._check_length(len(url), place)
        return self._add_data(place, read_data_url(url, place))

    def _check_detail(self, part: Sent, path: str, allowed: tuple[str, ...]) -> None:
        if isinstance(part.get("detail"), str):
            check_choice(part["detail"], allowed, path)

    # The Messages API

    def _take_block(self, block: Sent, kind: object, path: str) -> Sent:
        if kind == "tool_result" and isinstance(block.get("content"), list):
            return {**block, "content": self._take_parts(block["content"], f"{path}.tool_result.content")}
        source = block.get("source")
        if kind not in ("image", "document") or not isinstance(source, dict):
            return block
        is_image, form = kind == "image", source.get("type")
        if is_image:
            self._refuse(path)
        if form == "content" and isinstance(source.get("content"), list):
            content = self._take_parts(source["content"], f"{path}.document.source.content.content")
            return {**block, "source": {**source, "content": content}}
        key = {"base64": "data", "url": "url", "file": "file_id"}.get(str(form))
        if key is None or not isinstance(source.get(key), str):
            return block
        place = self._place(f"{path}.{kind}.source.{form}", is_image=is_image)
        if form == "file":
            self._add_file_id(place, source[key])
            return block
        if form == "url":
            self._add_url(place, source[key])
            return block
        return {**block, "source": {**source, key: self._take_base64(block, source, place)}}

    def _take_base64(self, block: Sent, source: Sent, place: MediaPlace) -> str:
        encoded, media_type = source["data"], str(source.get("media_type"))
        if place.is_image and len(encoded) > MESSAGES_IMAGE_BYTES:
            raise large_messages_image(place, len(encoded))
        changes = block.get("transformations")
        downsize = isinstance(changes, dict) and changes.get("oversized_image") == "downsize"
        sent = read_base64(encoded, media_type, place)
        return self._add_data(place, sent, media_type=media_type if place.is_image else None, downsize=downsize)

    # All APIs

    def _place(self, path: str, *, is_image: bool = True) -> MediaPlace:
        return MediaPlace(api=self._api, path=path, is_image=is_image)

    def _refuse(self, path: str) -> None:
        if self._refused:
            raise refused_media(path)

    def _add_url(self, place: MediaPlace, url: str) -> None:
        check_url(url, place.path, pictured=place.is_image)
        self._add(SentMedia(place=place, source=url))

    def _add_file_id(self, place: MediaPlace, file_id: str) -> None:
        self._add(SentMedia(place=place, source=file_id, is_file_id=True))

    def _add_data(
        self, place: MediaPlace, sent: SentData, *, media_type: str | None = None, downsize: bool = False
    ) -> str:
        url = format_blob_url(sent.reference)
        self._add(SentMedia(place=place, source=url, sent=sent, media_type=media_type, downsize=downsize))
        return url

    def _add(self, media: SentMedia) -> None:
        self._num_images += media.place.is_image
        if self._num_images > self._settings.max_images:
            raise too_many_images(self._param, self._num_images, self._settings.max_images)
        self.taken.append(media)

    def _check_length(self, chars: int, place: MediaPlace) -> None:
        """Checks the length of an image in base64, before it is decoded."""
        found, allowed = chars * 3 // 4, self._settings.max_image_mib * MIB
        if found > allowed + 128:  # the type, and what is left of the last three bytes
            detail = f"has about {found} bytes; at most {allowed} are read."
            raise wrong_size(place, "image_file_too_large", detail)


def _several_sources(path: str, *keys: str) -> ApiError:
    names = ", ".join(f"'{path}.{key}'" for key in keys)
    return ApiError(400, "mutually_exclusive_parameters", f"Mutually exclusive parameters: {names}.", path)
