"""Judges the pictures of a model type: greedy output with them is compared with transformers' `generate`."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.vision_families import explain_refusal
from antiphon.engine.options import EngineOptions
from tests.engine.media.picture_checks import PICTURE_CHECKS, PictureCase
from tests.engine.media.picture_families import FAMILIES, generate_reference, tiny_picture_model

AS_GENERATE = "as `generate`"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def judge_pictures(family: str) -> str:
    """Returns what the engine does with pictures for models of a family or, if they are refused, a model type."""
    model_type = FAMILIES[family].model_type if family in FAMILIES else family
    if (reason := explain_refusal(model_type)) is not None:
        return f"refused: {reason.split(': ', 1)[1]}"
    return "; ".join(fault for dtype in DTYPES for fault in _judge_files(family, dtype)) or AS_GENERATE


def _judge_files(name: str, dtype: str) -> list[str]:
    """Returns how a family differs when its model is loaded from files in this type."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pictures-") as folder:
        copy.deepcopy(tiny_picture_model(name)).to(DTYPES[dtype]).save_pretrained(folder)  # type: ignore[arg-type]
        reference = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        case = PictureCase(
            name,
            lambda **options: build_core(Path(folder), EngineOptions(pack_cache=False, **options)),
            lambda prompt: generate_reference(name, prompt, reference),
        )
        return [f"{dtype}, {label}: {fault}" for label, check in PICTURE_CHECKS.items() if (fault := _run(check, case))]


def _run(check: Callable[[PictureCase], None], case: PictureCase) -> str:
    try:
        check(case)
    except Exception as failure:  # noqa: BLE001  told in the table
        return f"{type(failure).__name__} {failure}".strip()
    return ""
