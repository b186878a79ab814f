"""Checks the arrays that a process of the sandbox hands over, before anybody maps them."""

import fcntl
import os
import stat
import sys
import tempfile

from antiphon.app.sandbox.media.media_process import MediaAnswer
from antiphon.app.sandbox.media.messages import MAX_PAYLOAD_BYTES, PreparedReply
from antiphon.app.sandbox.sandbox_process import SandboxError
from antiphon.engine.media_messages import ARRAY_ALIGNMENT, MediaArrays


def take_arrays(reply: PreparedReply, answer: MediaAnswer) -> MediaArrays:
    """Returns the arrays of a reply, and takes its descriptor over. Raises `SandboxError` if it is not as it says."""
    descriptor = answer.descriptor
    if descriptor is None:
        descriptor = _write_file(answer.payload)
    try:
        _check_places(reply)
        _check_file(reply, descriptor, is_memory_file=answer.descriptor is not None)
    except BaseException:
        os.close(descriptor)
        raise
    return MediaArrays(arrays=reply.arrays, size=reply.size, descriptor=descriptor)


def _check_places(reply: PreparedReply) -> None:
    end = 0
    for array in reply.arrays:
        if array.offset % ARRAY_ALIGNMENT or array.offset < end or any(side < 0 for side in array.shape):
            raise SandboxError("image_worker sent arrays that overlap")
        end = array.offset + array.size
    if end > reply.size or reply.size > MAX_PAYLOAD_BYTES:
        raise SandboxError("image_worker sent arrays that are longer than their file")


def _check_file(reply: PreparedReply, descriptor: int, *, is_memory_file: bool) -> None:
    status = os.fstat(descriptor)
    if status.st_size != reply.size or not stat.S_ISREG(status.st_mode):
        raise SandboxError("image_worker sent a file of another size than it said")
    if is_memory_file and not _is_sealed(descriptor):
        raise SandboxError("image_worker sent a file that can still change")


def _is_sealed(descriptor: int) -> bool:
    if sys.platform != "linux":
        return False
    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & needed == needed
    except OSError:
        return False


def _write_file(payload: bytes) -> int:
    """Returns the descriptor of a file without a name, for systems without files in memory."""
    with tempfile.TemporaryFile() as file:
        file.write(payload)
        file.flush()
        return os.dup(file.fileno())
