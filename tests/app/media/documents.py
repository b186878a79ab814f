"""PDFs for the tests: bytes, without a library."""

import io
import zlib
from collections.abc import Mapping, Sequence

from pypdf import PdfWriter

Objects = dict[int, bytes]


def join_objects(objects: Mapping[int, bytes], trailer: bytes = b"/Root 1 0 R") -> bytes:
    """Returns a PDF with a table of its objects."""
    body, offsets = bytearray(b"%PDF-1.7\n"), {}
    for number, content in objects.items():
        offsets[number] = len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start, count = len(body), max(objects) + 1
    body += b"xref\n0 %d\n0000000000 65535 f \n" % count
    for number in range(1, count):
        body += b"%010d 00000 %b \n" % (offsets.get(number, 0), b"n" if number in offsets else b"f")
    return bytes(body + b"trailer\n<< /Size %d %b >>\nstartxref\n%d\n%%%%EOF\n" % (count, trailer, start))


def make_stream(content: bytes, entries: bytes = b"", *, compress: bool = False) -> bytes:
    """Returns an object that is a stream."""
    if compress:
        content, entries = zlib.compress(content, 9), b"/Filter /FlateDecode " + entries
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(content), entries, content)


def write_text(text: str) -> bytes:
    """Returns a page's content that shows a line of text."""
    return f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode("latin-1")


def make_pdf_objects(
    contents: Sequence[bytes], *, box: bytes = b"[0 0 612 792]", catalog: bytes = b"", compress: bool = False
) -> Objects:
    """Returns the objects of a PDF with a page for each content."""
    pages = [10 + 2 * index for index in range(len(contents))]
    objects: Objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R %b >>" % catalog,
        2: b"<< /Type /Pages /Count %d /Kids [%b] >>" % (len(pages), b" ".join(b"%d 0 R" % page for page in pages)),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    resources = b"/Resources << /Font << /F1 3 0 R >> /XObject << /X1 5 0 R >> >>"
    for page, content in zip(pages, contents, strict=True):
        objects[page] = b"<< /Type /Page /Parent 2 0 R /MediaBox %b %b /Contents %d 0 R >>" % (box, resources, page + 1)
        objects[page + 1] = make_stream(content, compress=compress)
    return objects


def make_pdf(*texts: str, box: bytes = b"[0 0 612 792]") -> bytes:
    """Returns a PDF with a page for each text."""
    return join_objects(make_pdf_objects([write_text(text) for text in texts], box=box))


def encrypt_pdf(data: bytes) -> bytes:
    """Returns a PDF that opens with a password only."""
    writer = PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt("secret", algorithm="RC4-128")
    encrypted = io.BytesIO()
    writer.write(encrypted)
    return encrypted.getvalue()
