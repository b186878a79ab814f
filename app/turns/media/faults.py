"""Translates faults of images and files to errors of the request that sent them."""

from antiphon.app.errors import ApiError
from antiphon.app.media.media_fault import MediaFault
from antiphon.app.outbound.faults import FetchFault
from antiphon.app.requests.media.errors import (
    MediaPlace,
    invalid_file,
    invalid_image,
    media_busy,
    refused_url,
    unparsed_image,
    wrong_size,
)

MESSAGES_MAX_SIDE = 8000
"""Longest side of an image in pixels on `/v1/messages`, as in Anthropic's API."""
MESSAGES_MANY_IMAGES = 20
MESSAGES_MANY_MAX_SIDE = 2000
"""Longest side of each of more than `MESSAGES_MANY_IMAGES` images."""
SIZE_CODES = {"too_large": "image_too_large", "too_small": "image_too_small"}


def explain_image_fault(fault: MediaFault, place: MediaPlace) -> ApiError:
    """Returns the error for an image that cannot be used."""
    if fault.code in SIZE_CODES:
        code = "image_file_too_large" if fault.measure == "bytes" else SIZE_CODES[fault.code]
        return wrong_size(place, code, fault.detail)
    if fault.code in ("busy", "unavailable"):
        return media_busy()
    if fault.code == "too_slow":
        return unparsed_image(place)
    return invalid_image(place, is_format=fault.code == "unsupported_format")


def explain_file_fault(fault: MediaFault, place: MediaPlace) -> ApiError:
    """Returns the error for a file that cannot be used."""
    if fault.code in ("busy", "unavailable"):
        return media_busy()
    return invalid_file(place, fault.detail, _MESSAGES_TEXTS.get(fault.code, "Could not process PDF"))


def explain_fetch_fault(fault: FetchFault, place: MediaPlace) -> ApiError:
    """Returns the error for a URL that cannot be fetched."""
    if fault.code == "refused":
        return refused_url(place, fault.host)
    code = "failed_to_download_image" if place.is_image else "failed_to_download_file"
    return place.fault(code, fault.detail)


def check_messages_size(width: int, height: int, num_images: int, place: MediaPlace) -> None:
    """Checks the sides of an image by the limits of `/v1/messages`. Raises `ApiError` 400."""
    is_many = num_images > MESSAGES_MANY_IMAGES
    limit = MESSAGES_MANY_MAX_SIDE if is_many else MESSAGES_MAX_SIDE
    if max(width, height) > limit:
        kind = " for many-image requests" if is_many else ""
        message = f"At least one of the image dimensions exceed max allowed size{kind}: {limit} pixels"
        raise wrong_size(place, "image_too_large", message)


_MESSAGES_TEXTS = {
    "pdf_password": "The PDF specified is password protected",
    "pdf_damaged": "The PDF specified was not valid",
    "pdf_pages": "A maximum of 100 PDF pages may be provided",
}
