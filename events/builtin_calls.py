"""Calls of the built-in tools that the client runs: `shell`, `apply_patch` and the older `local_shell`.

Each has an item and a payload of its own shape. The payloads are the same in output items and in items that the client
sends back. Source: the types of the openai SDK.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.events.items import Item, Status

PatchKind = Literal["create_file", "update_file", "delete_file"]


class ShellAction(Struct, frozen=True, kw_only=True):
    """Commands to run one after the other, the time limit of each in milliseconds, and the limit of its output."""

    commands: tuple[str, ...]
    timeout_ms: int | None = None
    max_output_length: int | None = None
    """Maximum number of characters of output that the model wants to read."""


class ShellCall(Item, frozen=True, kw_only=True, tag="shell_call"):
    """Commands for a shell. `environment` is present if the request's tool had one."""

    status: Status
    action: ShellAction
    call_id: str
    environment: Any = UNSET
    caller: Any = UNSET
    created_by: Any = UNSET


class LocalShellAction(Struct, frozen=True, kw_only=True, tag_field="type", tag="exec"):
    """A program to run, as its argument vector. Keys that the model left out are absent: clients take no null."""

    command: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_ms: int | None | UnsetType = UNSET
    working_directory: str | None | UnsetType = UNSET
    user: str | None | UnsetType = UNSET


class LocalShellCall(Item, frozen=True, kw_only=True, tag="local_shell_call"):
    """A program for the client's shell (older form)."""

    status: Status
    action: LocalShellAction
    call_id: str


class FileOperation(Struct, frozen=True, kw_only=True, tag_field="type"):
    """A change of one file. `path` is relative to the client's workspace."""


class CreateFile(FileOperation, frozen=True, kw_only=True, tag="create_file"):
    """A new file. Each line of `diff` is `+` and a line of the file."""

    diff: str
    path: str


class UpdateFile(FileOperation, frozen=True, kw_only=True, tag="update_file"):
    """A change of an existing file. `diff` consists of hunks: `@@ context`, then lines after a blank, `-` or `+`."""

    diff: str
    path: str


class DeleteFile(FileOperation, frozen=True, kw_only=True, tag="delete_file"):
    """The removal of a file."""

    path: str


PatchOperation = CreateFile | UpdateFile | DeleteFile


def create_operation(kind: PatchKind, path: str, diff: str) -> PatchOperation:
    """Returns the operation of this kind. The removal of a file has no `diff`."""
    if kind == "delete_file":
        return DeleteFile(path=path)
    return CreateFile(path=path, diff=diff) if kind == "create_file" else UpdateFile(path=path, diff=diff)


class ApplyPatchCall(Item, frozen=True, kw_only=True, tag="apply_patch_call"):
    """A change of one file. Clients know no status `incomplete` of this item, so a cut one is in progress."""

    status: Literal["in_progress", "completed"]
    call_id: str
    operation: PatchOperation
    caller: Any = UNSET
    created_by: Any = UNSET


class ShellExit(Struct, frozen=True, kw_only=True, tag_field="type", tag="exit"):
    """The command ended with this code."""

    exit_code: int


class ShellTimeout(Struct, frozen=True, kw_only=True, tag_field="type", tag="timeout"):
    """The command was stopped at its time limit."""


class ShellOutput(Struct, frozen=True, kw_only=True):
    """The output of one command, and how it ended."""

    outcome: ShellExit | ShellTimeout
    stdout: str = ""
    stderr: str = ""
