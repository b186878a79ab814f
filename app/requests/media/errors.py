"""Errors about images and files, in the words of each API.

Agents recover by these words. Codex removes the images of its last tool outputs when a message contains
`INVALID_IMAGE`, and ends its session at any other error. Claude Code removes the block whose dotted path begins the
message. No text of a library is ever part of a message.
"""

from typing import Literal

from msgspec import Struct

from antiphon.app.errors import RETRY_AFTER_S, ApiError, clip_text, unsupported_field

MediaApi = Literal["responses", "chat", "messages"]
INVALID_IMAGE = (
    "The image data you provided does not represent a valid image. Please check your input and try again with one of "
    "the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp']."
)
UNSUPPORTED_IMAGE = (
    "You uploaded an unsupported image. Please make sure your image has of one the following formats: "
    "['png', 'jpeg', 'gif', 'webp']."
)
DATA_URL_EXAMPLE = "data:image/png;base64,aW1nIGJ5dGVzIGhlcmU="
MESSAGES_IMAGE_BYTES = 5 * 1024 * 1024
"""Maximum length of an image in base64 on `/v1/messages`, as in Anthropic's API."""


class MediaPlace(Struct, frozen=True, kw_only=True):
    """The place of an image or a file in a request.

    `path`: of the field that holds it, in the form of the API, such as `input[0].content[1].image_url` or
    `messages.0.content.1.image.source.base64`.
    """

    api: MediaApi
    path: str
    is_image: bool = True

    @property
    def data_path(self) -> str:
        """Path of the data in an error of `/v1/messages`."""
        return f"{self.path}.data" if self.path.endswith(".base64") else self.path

    def fault(self, code: str, message: str) -> ApiError:
        """Returns an error whose message says everything in the OpenAI APIs, and follows the path in Messages."""
        if self.api == "messages":
            return ApiError(400, code, f"{self.data_path}: {message}")
        return ApiError(400, code, message, self.path)


def refused_media(path: str) -> ApiError:
    """Returns the error for an image or a file on a server that refuses them."""
    return unsupported_field(path, "Image and file inputs are disabled on this server (`--unsupported-media refuse`).")


def invalid_data_url(place: MediaPlace, found: str) -> ApiError:
    """Returns the error for a data URL. `found`: its fault, such as "invalid base64"."""
    if place.api == "messages":
        empty = found.startswith("empty")
        noun = "image" if place.is_image else "PDF"
        return place.fault("invalid_value", f"{noun} cannot be empty" if empty else f"Could not process {noun}")
    kind = "an image MIME type" if place.is_image else "a MIME type"
    message = (
        f"Invalid '{place.path}'. Expected a base64-encoded data URL with {kind} (e.g. '{DATA_URL_EXAMPLE}'), "
        f"but got {found}."
    )
    if place.api == "responses" and place.is_image:
        message = f"{INVALID_IMAGE} {message}"
    return place.fault("invalid_value", message)


def invalid_image(place: MediaPlace, *, is_format: bool = False) -> ApiError:
    """Returns the error for bytes that are no readable image. `is_format`: they are of another format."""
    if place.api == "messages":
        return place.fault("invalid_value", "Could not process image")
    if place.api == "chat" and is_format:
        return place.fault("invalid_image_format", UNSUPPORTED_IMAGE)
    return place.fault("invalid_value", INVALID_IMAGE)


def unparsed_image(place: MediaPlace) -> ApiError:
    """Returns the error for an image that took too long, or too much memory, to decode."""
    if place.api == "messages":
        return invalid_image(place)
    return place.fault("image_parse_error", INVALID_IMAGE)


def mismatched_image(place: MediaPlace, media_type: str) -> ApiError:
    """Returns the error of `/v1/messages` for an image of another format than its type says."""
    return place.fault("invalid_value", f"Image does not match the provided media type {clip_text(media_type)}")


def wrong_size(place: MediaPlace, code: str, detail: str) -> ApiError:
    """Returns the error for an image that is too large or too small. `detail` names what was found and what is read."""
    if place.api == "messages":
        return place.fault(code, detail)
    message = f"Image at '{place.path}' {detail}"
    return place.fault(code, f"{INVALID_IMAGE} {message}" if place.api == "responses" else message)


def large_messages_image(place: MediaPlace, length: int) -> ApiError:
    """Returns the error of `/v1/messages` for an image of too many characters in base64."""
    message = f"image exceeds 5 MB maximum: {length} bytes > {MESSAGES_IMAGE_BYTES} bytes"
    return ApiError(400, "image_file_too_large", f"{place.path}: {message}")


def too_many_images(param: str, found: int, allowed: int) -> ApiError:
    """Returns the error for a request with too many images."""
    message = f"Invalid '{param}': {found} images, at most {allowed} are allowed."
    return ApiError(400, "too_many_images", message, param)


def too_many_bytes(place: MediaPlace, found: int, allowed: int) -> ApiError:
    """Returns the error for a request that names more than it may have in memory. `place`: where it exceeds that."""
    message = f"Up to '{place.path}', the files and URLs of the request have {found} bytes; at most {allowed} are read."
    return place.fault("file_too_large", message)


def file_not_found(place: MediaPlace, file_id: str) -> ApiError:
    """Returns the same error for a file that is unknown, deleted, expired, or another owner's."""
    code = "image_file_not_found" if place.is_image else "file_not_found"
    message = f"File '{clip_text(file_id)}' at '{place.path}' was not found."
    return ApiError(400, code, message, None if place.api == "messages" else place.path)


def refused_url(place: MediaPlace, host: str) -> ApiError:
    """Returns the error for a URL that this server does not fetch."""
    message = (
        f"'{place.path}': this server fetches no URLs from '{clip_text(host)}'. Send a data URL or a file_id, or ask "
        "its operator for --allow-image-host."
    )
    code = "invalid_image_url" if place.is_image else "invalid_file_url"
    return ApiError(400, code, message, None if place.api == "messages" else place.path)


def invalid_file(place: MediaPlace, detail: str, messages_text: str) -> ApiError:
    """Returns the error for a file. `detail` follows its path; `messages_text` is Anthropic's text for the fault."""
    if place.api == "messages":
        return place.fault("invalid_file", messages_text)
    return place.fault("invalid_file", f"'{place.path}' {detail}")


def media_busy() -> ApiError:
    """Returns the error for a server whose process for images and files is not available, or has a full queue."""
    message = "The server is busy with other images and files. Retry shortly."
    return ApiError(503, "server_busy", message, headers=(("retry-after", str(RETRY_AFTER_S)),))
