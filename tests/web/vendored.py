"""The libraries in `web/vendor`: `python -m tests.web.vendored` compares them with their manifest.

`python -m tests.web.vendored write` fetches the packages from npm and writes files and hashes. To change a version, change
it in the manifest first; then read the diff.
"""

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, convert, field

from tests.syntax import ROOT

VENDOR = ROOT / "web" / "vendor"
MANIFEST = VENDOR / "manifest.toml"


class VendoredFile(Struct, frozen=True):
    """A file, and the one of the package that it was made of."""

    source: str = field(name="from")
    imports: dict[str, str] = {}
    """Maps bare names in import statements to what stands in their place."""
    uncommented: bool = False
    """Whether lines that are comments are left out: some modules are not minified, and comments are half of their size."""
    original: str = ""
    sha256: str = ""


class Library(Struct, frozen=True):
    """An npm package. `integrity` is npm's digest of its archive."""

    name: str
    version: str
    license: str
    integrity: str
    files: dict[str, VendoredFile]


def read_manifest(text: str) -> list[Library]:
    return convert(tomllib.loads(text)["library"], list[Library])


def find_faults(folder: Path, libraries: list[Library]) -> list[str]:
    """Returns a line for each file that is missing, not listed, or not the listed one."""
    listed = {name: file for library in libraries for name, file in library.files.items()}
    own = {"manifest.toml"}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - own
    found = {name for name in found if not name.endswith(".d.ts")}
    faults = [f"{name}: not in the manifest" for name in sorted(found - set(listed))]
    for name, file in listed.items():
        if name not in found:
            faults.append(f"{name}: missing")
        elif hash_bytes((folder / name).read_bytes()) != file.sha256:
            faults.append(f"{name}: is not the file of the manifest")
        elif (file.original != file.sha256) != bool(file.imports or file.uncommented):
            faults.append(f"{name}: differs from the file of its package without a recorded reason")
        elif bare := find_bare_imports((folder / name).read_text(encoding="utf-8")) if name.endswith(".js") else []:
            faults.append(f"{name}: imports {', '.join(bare)}, which no browser resolves")
    return faults


_SPECIFIER = re.compile(r"""(?:\bfrom|\bimport)\s*(["'])([^"']+)\1""")


def find_bare_imports(source: str) -> list[str]:
    return [match[2] for match in _SPECIFIER.finditer(source) if not match[2].startswith(("./", "../"))]


def rewrite_imports(source: str, imports: dict[str, str]) -> str:
    """Returns a module whose bare import names are replaced. Raises `KeyError` for one that `imports` lacks."""

    def replace(match: re.Match[str]) -> str:
        name = match[2]
        target = name if name.startswith(("./", "../")) else imports[name]
        return match[0].replace(f"{match[1]}{name}{match[1]}", f"{match[1]}{target}{match[1]}")

    return _SPECIFIER.sub(replace, source)


def drop_comments(source: str) -> str:
    """Returns a module without the lines that hold a comment of one line and nothing else."""
    return re.sub(r"^[ \t]*//.*\n", "", source, flags=re.MULTILINE)


def hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetch_package(library: Library, folder: Path) -> tuple[Path, str]:
    """Returns the unpacked package and the digest of its archive, as npm writes it."""
    name = f"{library.name}@{library.version}"
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), name]
    packed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    archive = folder / packed
    with tarfile.open(archive) as opened:
        opened.extractall(folder / archive.stem, filter="data")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return folder / archive.stem / "package", f"sha512-{digest}"


def _rewrite_module(source: str, file: VendoredFile) -> str:
    """Returns a module as it is vendored."""
    rewritten = rewrite_imports(source, file.imports)
    return drop_comments(rewritten) if file.uncommented else rewritten


def write_library(library: Library, folder: Path) -> str:
    """Writes the files of a library below `VENDOR`. Returns its table of the manifest."""
    package, integrity = fetch_package(library, folder)
    lines = ["[[library]]"]
    values = {"name": library.name, "version": library.version, "license": library.license, "integrity": integrity}
    lines += [*(f'{key} = "{value}"' for key, value in values.items()), "[library.files]"]
    for name, file in library.files.items():
        data = (package / file.source).read_bytes()
        written = _rewrite_module(data.decode(), file).encode() if name.endswith(".js") else data
        target = VENDOR / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(written)
        imports = ", ".join(f'{bare} = "{path}"' for bare, path in file.imports.items())
        middle = f", imports = {{ {imports} }}" if imports else ""
        middle += ", uncommented = true" if file.uncommented else ""
        hashes = f'original = "{hash_bytes(data)}", sha256 = "{hash_bytes(written)}"'
        lines.append(f'"{name}" = {{ from = "{file.source}"{middle}, {hashes} }}')
    return "\n".join(lines)


def write_all() -> None:
    """Fetches all packages, and writes the files and the manifest. Its comment at the top stays."""
    text = MANIFEST.read_text(encoding="utf-8")
    head = text.partition("[[library]]")[0]
    with TemporaryDirectory() as folder:
        tables = [write_library(library, Path(folder)) for library in read_manifest(text)]
    MANIFEST.write_text(head + "\n\n".join(tables) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the files if told so, then compares them with the manifest."""
    if sys.argv[1:] == ["write"]:
        write_all()
    faults = find_faults(VENDOR, read_manifest(MANIFEST.read_text(encoding="utf-8")))
    print("\n".join(faults) or "web/vendor holds the files of its manifest.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
