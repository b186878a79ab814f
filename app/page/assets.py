"""The files of the page, loaded once. Their URLs hold a digest of all of them, so browsers may keep each for ever.

The page has no links that depend on where the server is mounted: documents name their modules relative to their own
URL, and modules name each other relatively. A proxy may therefore serve the page below a prefix.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from msgspec import Struct

ASSET_MEDIA_TYPES = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
}
"""Types by the ends of names. Files with other ends are not served."""
WEB_FOLDER = Path(__file__).resolve().parents[2] / "web"
"""The folder of `antiphon.web`. It lies beside `app` in the repository and where the package is installed."""
INDEX_NAME = "index.html"
ASSETS_PLACEHOLDER = b"assets:"
"""Prefix of the names of modules in the document, in place of the path that leads to them."""
DIGEST_LENGTH = 16
VIEW_PATH = re.compile(r"/ui/(?:|turns|live|compare|play|turns/[A-Za-z0-9_.-]{1,200})")
"""Paths that the page shows a view at. The server answers all of them with the document."""
MAX_LEVELS = 2
"""Levels below `/ui/` of a view's path, of which the first is `/ui/` itself and what stands directly in it."""


class StaticFile(Struct, frozen=True):
    """A file to serve."""

    content: bytes
    media_type: bytes
    etag: bytes


class PageFiles(Struct, frozen=True):
    """All files of the page."""

    assets: dict[str, StaticFile]
    """Files by their path, `/ui/DIGEST/NAME`."""
    documents: tuple[StaticFile, ...]
    """The document of a view, by the number of levels between its path and `/ui/`."""

    def find_file(self, path: str) -> tuple[StaticFile | None, bool]:
        """Returns the file at a path, if any, and whether its content never changes."""
        asset = self.assets.get(path)
        if asset is not None:
            return asset, True
        if VIEW_PATH.fullmatch(path) is None:
            return None, False
        return self.documents[path.count("/") - 2], False


@cache
def load_page_files() -> PageFiles:
    """Loads the files of `antiphon.web`."""
    return build_page_files(read_files(WEB_FOLDER))


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns the contents of the files of the types that are served, by their paths below a folder. Skips links."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix[1:] in ASSET_MEDIA_TYPES and path.is_file() and not path.is_symlink()
    }


def build_page_files(contents: dict[str, bytes]) -> PageFiles:
    """Returns the files of a page by the names and contents of all its files, among them the document."""
    document = contents[INDEX_NAME]
    names = sorted(set(contents) - {INDEX_NAME})
    lengths = (b"%d %s %d " % (len(name.encode()), name.encode(), len(contents[name])) for name in names)
    whole = b"".join(length + contents[name] for name, length in zip(names, lengths, strict=True))
    digest = hashlib.sha256(whole).hexdigest()[:DIGEST_LENGTH]
    steps = ("../" * level + digest + "/" for level in range(MAX_LEVELS))
    return PageFiles(
        {f"/ui/{digest}/{name}": _static_file(name, contents[name]) for name in names},
        tuple(_static_file(INDEX_NAME, document.replace(ASSETS_PLACEHOLDER, step.encode())) for step in steps),
    )


def _static_file(name: str, content: bytes) -> StaticFile:
    media_type = ASSET_MEDIA_TYPES[name.rpartition(".")[2]]
    return StaticFile(content, media_type, b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode())
