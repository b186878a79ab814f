"""Files of the snapshots: one for each case, dialect, case with tools, and template with pictures, named after it."""

from pathlib import Path

from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

SNAPSHOT_FOLDER = Path(__file__).resolve().parents[2] / "snapshots"
DIALECT_SNAPSHOT_FOLDER = SNAPSHOT_FOLDER / "dialects"
TOOL_SNAPSHOT_FOLDER = SNAPSHOT_FOLDER / "tools"
IMAGE_SNAPSHOT_FOLDER = SNAPSHOT_FOLDER / "images"
REMOTE_IMAGE_SNAPSHOT_FOLDER = SNAPSHOT_FOLDER / "remote_images"


class CaseSnapshot(SingleFileSnapshotExtension):
    """One text file for each case: `snapshots/NAME.txt`."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    folder = SNAPSHOT_FOLDER

    @classmethod
    def dirname(cls, *, test_location: object) -> str:
        return str(cls.folder)

    @classmethod
    def matches_test_location(cls, *, test_location: object, snapshot_location: str) -> bool:
        return Path(snapshot_location).parent == cls.folder

    @classmethod
    def get_snapshot_name(cls, *, test_location: object, index: object = 0) -> str:
        return str(index)


class DialectSnapshot(CaseSnapshot):
    """One text file for each dialect: `snapshots/dialects/NAME.txt`."""

    folder = DIALECT_SNAPSHOT_FOLDER


class ToolSnapshot(CaseSnapshot):
    """One text file for each case with tools of the server: `snapshots/tools/NAME.txt`."""

    folder = TOOL_SNAPSHOT_FOLDER


class ImagePromptSnapshot(CaseSnapshot):
    """One text file for each template that shows pictures: `snapshots/images/NAME.txt`."""

    folder = IMAGE_SNAPSHOT_FOLDER


class RemoteImageSnapshot(CaseSnapshot):
    """One text file for each kind of engine on other servers: `snapshots/remote_images/NAME.txt`."""

    folder = REMOTE_IMAGE_SNAPSHOT_FOLDER
