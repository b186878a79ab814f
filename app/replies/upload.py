"""Reads an upload while it arrives: the file goes to the store in pieces, the other fields of the form to memory."""

from collections.abc import AsyncIterator
from email.message import Message

from msgspec import structs
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from antiphon.app.base.errors import ApiError, clip_text, invalid_value, missing_field
from antiphon.app.batches.stored_files import FileGoneError, FileWriter
from antiphon.app.requests.batches.body import MAX_FILE_BYTES, UploadFields, read_upload_fields
from antiphon.app.store.batches.records import StoredFile

MAX_FIELD_BYTES = 1024
MAX_FIELDS = 8
MAX_FILENAME_CHARS = 255


async def receive_upload(content_type: str, body: AsyncIterator[bytes], writer: FileWriter) -> StoredFile:
    """Writes the file of a multipart form with `writer`. Returns it as it shall be completed. Raises `ApiError`."""
    form = _UploadForm(writer)
    try:
        await form.read(_make_parser(content_type), body)
        await writer.flush()
    except MultipartError as error:
        raise ApiError(400, "invalid_body", f"The form cannot be read: {clip_text(str(error))}.") from None
    except FileGoneError:
        raise ApiError(404, None, "The file was deleted while it was uploaded.") from None
    if form.filename is None:
        raise missing_field("file")
    return _complete(writer.file, form.filename, read_upload_fields(form.fields))


def _make_parser(content_type: str) -> PushMultipartParser:
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if not boundary:
        raise invalid_value("Content-Type", "The Content-Type of a form must name its boundary.")
    return PushMultipartParser(boundary, max_segment_count=MAX_FIELDS)


def _complete(file: StoredFile, filename: str, fields: UploadFields) -> StoredFile:
    expires_at = None if fields.lifetime_s is None else file.created_at + fields.lifetime_s
    name = "".join(filter(str.isprintable, filename.replace("\\", "/").rpartition("/")[2]))[:MAX_FILENAME_CHARS]
    return structs.replace(file, filename=name or "file", purpose=fields.purpose, expires_at=expires_at)


class _UploadForm:
    """The parts of a form that have arrived."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self._segment: MultipartSegment | None = None
        self._text = bytearray()
        self._file_bytes = 0
        self.fields: dict[str, str] = {}
        self.filename: str | None = None

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

    def _begin_part(self, segment: MultipartSegment) -> None:
        self._segment = segment
        self._text.clear()
        if segment.name == "file":
            if self.filename is not None:
                raise invalid_value("file", "Send one file in a request.")
            self.filename = segment.filename or "file"

    async def _add_data(self, data: bytes | bytearray) -> None:
        if self._segment is None or self._segment.name == "file":
            self._file_bytes += len(data)
            if self._file_bytes > MAX_FILE_BYTES:
                raise ApiError(413, "file_too_large", f"A file may have at most {MAX_FILE_BYTES} bytes.", "file")
            await self._writer.write(data)
            return
        self._text += data
        if len(self._text) > MAX_FIELD_BYTES:
            raise invalid_value(clip_text(self._segment.name), "The value of this field is too long.")

    def _end_part(self) -> None:
        if self._segment is not None and self._segment.name != "file":
            self.fields[self._segment.name] = self._text.decode("utf-8", "replace")
