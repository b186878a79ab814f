"""The arrays of a picture: a file that another process has filled → tensors on its memory."""

import mmap
import os

import torch
from torch import Tensor

from antiphon.engine.media_checks import check_arrays
from antiphon.engine.media_messages import MediaArrays

ARRAY_DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64, "bool": torch.bool}


def map_arrays(media: MediaArrays) -> dict[str, Tensor]:
    """Returns the arrays by name, and closes the descriptor. Raises `InvalidArrays`.

    The tensors share the memory of the file, which is sealed and so never changes, and must not be written to.
    """
    try:
        check_arrays(media)
        memory = mmap.mmap(media.descriptor, media.size, flags=mmap.MAP_PRIVATE)
    finally:
        os.close(media.descriptor)
    tensors = {}
    for array in media.arrays:
        count = array.size // ARRAY_DTYPES[array.dtype].itemsize
        flat = torch.frombuffer(memory, dtype=ARRAY_DTYPES[array.dtype], count=count, offset=array.offset)
        tensors[array.name] = flat.view(array.shape)
    return tensors
