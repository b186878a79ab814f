"""Reads an upload while it arrives: the file goes to the store in pieces, the other fields of the form to memory."""

import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping
from email.message import Message

from msgspec import Struct, structs
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from antiphon.app.batches.stored_files import FileGoneError, FileWriter
from antiphon.app.errors import ApiError, clip_text, invalid_value, missing_field
from antiphon.app.requests.batches.body import (
    MAX_BATCH_FILE_BYTES,
    UploadFields,
    clean_filename,
    clean_media_type,
    read_anthropic_fields,
    read_part_fields,
    read_upload_fields,
)
from antiphon.app.route_helpers.form_filename import find_filename
from antiphon.app.store.batches.records import StoredFile

MAX_FIELD_BYTES = 1024
MAX_FIELDS = 8


class FormKind(Struct, frozen=True):
    """A form of an upload: the field with the file, and the reader of the others."""

    file_field: str
    read_fields: Callable[[Mapping[str, str]], UploadFields]


OPENAI_FORM = FormKind("file", read_upload_fields)
ANTHROPIC_FORM = FormKind("file", read_anthropic_fields)
PART_FORM = FormKind("data", read_part_fields)


def max_file_bytes(purpose: str | None, max_file_mib: int) -> int:
    """Returns the largest size of a file; of any kind, if its purpose is not known yet."""
    limits = {"batch": MAX_BATCH_FILE_BYTES, None: max(max_file_mib << 20, MAX_BATCH_FILE_BYTES)}
    return limits.get(purpose, max_file_mib << 20)


async def receive_upload(
    content_type: str, body: AsyncIterator[bytes], writer: FileWriter, kind: FormKind, max_file_mib: int
) -> StoredFile:
    """Writes the file of a multipart form with `writer`. Returns it as it shall be completed. Raises `ApiError`."""
    form = _UploadForm(writer, kind, max_file_mib)
    try:
        await form.read(_make_parser(content_type), body)
        await writer.flush()
    except MultipartError as error:
        raise ApiError(400, "invalid_body", f"The form cannot be read: {clip_text(str(error))}.") from None
    except FileGoneError:
        raise ApiError(404, None, "The file was deleted while it was uploaded.") from None
    return form.complete()


def _make_parser(content_type: str) -> PushMultipartParser:
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if not boundary:
        raise invalid_value("Content-Type", "The Content-Type of a form must name its boundary.")
    return PushMultipartParser(boundary, max_segment_count=MAX_FIELDS)


def default_filename(kind: FormKind, media_type: str) -> str:
    """Returns the name of a file that came without one."""
    if kind is not ANTHROPIC_FORM:
        return "file"
    extension = mimetypes.guess_extension(media_type.partition(";")[0]) or ""
    return f"unnamed{extension}"


class _UploadForm:
    """The parts of a form that have arrived."""

    def __init__(self, writer: FileWriter, kind: FormKind, max_file_mib: int) -> None:
        self._writer, self._kind, self._max_file_mib = writer, kind, max_file_mib
        self._segment: MultipartSegment | None = None
        self._text = bytearray()
        self._file_bytes = 0
        self._fields: dict[str, str] = {}
        self._file: StoredFile | None = None
        """The file with its name and type, once it has begun."""

    async def read(self, parser: PushMultipartParser, body: AsyncIterator[bytes]) -> None:
        """Reads the whole form. Raises `ApiError` and the errors of the parser."""
        with parser:
            async for data in body:
                for part in parser.parse(data):
                    if isinstance(part, MultipartSegment):
                        self._begin_part(part)
                    elif part is None:
                        self._end_part()
                    else:
                        await self._add_data(part)
            for _ in parser.parse(b""):
                pass

    def complete(self) -> StoredFile:
        """Returns the file of a form that has been read. Raises `ApiError`."""
        if self._file is None:
            raise missing_field(self._kind.file_field)
        fields = self._kind.read_fields(self._fields)
        self._check_size(fields.purpose)
        file = structs.replace(self._writer.file, filename=self._file.filename, media_type=self._file.media_type)
        expires_at = file.expires_at if fields.lifetime_s is None else file.created_at + fields.lifetime_s
        return structs.replace(file, purpose=fields.purpose or file.purpose, expires_at=expires_at)

    def _begin_part(self, segment: MultipartSegment) -> None:
        self._segment = segment
        self._text.clear()
        if segment.name == self._kind.file_field:
            if self._file is not None:
                raise invalid_value(segment.name, "Send one file in a request.")
            media_type = clean_media_type(segment.header("content-type"))
            name = clean_filename(find_filename(segment), default_filename(self._kind, media_type))
            self._file = structs.replace(self._writer.file, filename=name, media_type=media_type)
        elif segment.name in self._fields:
            raise invalid_value(clip_text(segment.name), "Send each field once.")

    async def _add_data(self, data: bytes | bytearray) -> None:
        if self._segment is None or self._segment.name == self._kind.file_field:
            self._file_bytes += len(data)
            self._check_size(self._fields.get("purpose") if self._kind is OPENAI_FORM else "")
            await self._writer.write(data)
            return
        self._text += data
        if len(self._text) > MAX_FIELD_BYTES:
            raise invalid_value(clip_text(self._segment.name), "The value of this field is too long.")

    def _check_size(self, purpose: str | None) -> None:
        limit = max_file_bytes(purpose, self._max_file_mib)
        if self._file_bytes > limit:
            name = self._kind.file_field
            raise ApiError(413, "file_too_large", f"A file may have at most {limit} bytes.", name)

    def _end_part(self) -> None:
        if self._segment is not None and self._segment.name != self._kind.file_field:
            self._fields[self._segment.name] = self._text.decode("utf-8", "replace")
