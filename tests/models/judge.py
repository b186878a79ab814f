"""Judges a row: loads its checkpoints with the engine and compares greedy output with transformers' `generate`."""

import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.load.architectures import choose_model_class
from antiphon.engine.optimize.fuse import ROTARY_FUNCTION, FusedRotary
from antiphon.engine.options import EngineOptions, Quantization
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core
from tests.models.checkpoints import build_model, save_checkpoint
from tests.models.pictures import judge_pictures
from tests.models.rows import VOCAB_SIZE, ModelRow

PROMPT_LENGTHS_TOKENS = (90, 15, 31, 64, 9, 150, 40, 110)
"""Lengths of the prompts of one batch: shorter and far longer than windows and blocks."""

NUM_OUTPUT_TOKENS = 20
NUM_ALONE = 2
"""Number of prompts that are generated alone, too."""

EXPERT_NAMES = re.compile(r"\bexperts?\b|\.experts\.")
SIMILARITY = re.compile(r"cosine similarity to fp32 logits ([\d.-]+)")

Tokens = list[int]


class FormResult(msgspec.Struct):
    """Result of a quantized form: its cosine to the fp32 logits, or the reason why it does not start."""

    similarity: float | None = None
    reason: str = ""
    depends_on_batch: bool = False
    """True if the output of a prompt differs alone and in a batch."""
    packs_experts: bool | None = None
    """True if no expert's matrix stays in fp32; None for a model without experts."""


class RowResult(msgspec.Struct):
    """Result of a row. `faults` lists differences to `generate`; it is empty for a row that is right."""

    name: str
    path: str = ""
    reason: str = ""
    reuses_prefixes: bool = False
    forms: dict[str, FormResult] = {}
    faults: list[str] = []
    images: str = ""
    """What the engine does with pictures; empty for a model without a vision tower."""


class _Reasons(logging.Handler):
    """Collects the reasons of warnings that begin with the model's class."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yields the list of the engine's warnings, as they come."""
    handler, logger = _Reasons(), logging.getLogger("antiphon.engine")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def judge_row(
    row: ModelRow,
    forms: tuple[Quantization, ...] = ("int8", "int4"),
    dtypes: tuple[str, ...] = ("fp32", "bf16"),
    *,
    judges_images: bool = True,
) -> RowResult:
    """Runs all checks of a row, from files in these types; quantized forms are made from the last one.

    A failure of the engine is a fault of the row; one of transformers is raised.
    """
    result = RowResult(row.name, forms={}, faults=[])
    if row.vision is not None and judges_images:
        result.images = judge_pictures(row.pictures or row.model_type)
    model = build_model(row)
    with tempfile.TemporaryDirectory(prefix="antiphon-models-") as folder:
        for dtype in dtypes:
            path = Path(folder, dtype)
            save_checkpoint(model, dtype, path, row)
            with _original_rotary():
                expected = generate_expected(path)
            try:
                _judge_exact(result, path, expected, dtype)
            except Exception as failure:  # noqa: BLE001  told in the table
                result.faults.append(f"{dtype}: {type(failure).__name__}: {failure}"[:300])
        for form in forms:
            result.forms[form] = _judge_form(path, form)
    return result


def make_prompts() -> list[Tokens]:
    """Returns the fixed prompts."""
    return [
        [3 + (7 * number + 11 * index + index * index) % (VOCAB_SIZE - 3) for index in range(length)]
        for number, length in enumerate(PROMPT_LENGTHS_TOKENS)
    ]


@contextmanager
def _original_rotary() -> Iterator[None]:
    """Gives transformers its own rotary functions back, which the engine replaces for the whole process."""
    modules = [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]
    fused = [
        (module, function)
        for module in modules
        if isinstance(function := vars(module).get(ROTARY_FUNCTION), FusedRotary)
    ]
    for module, function in fused:
        setattr(module, ROTARY_FUNCTION, function.original)
    try:
        yield
    finally:
        for module, function in fused:
            setattr(module, ROTARY_FUNCTION, function)


@torch.inference_mode()
def generate_expected(path: Path) -> dict[tuple[int, ...], Tokens]:
    """Returns what `generate` appends to each prompt, and to the first ones with their output and one more token."""
    model: Any = choose_model_class(inspect_checkpoint(path)).from_pretrained(path, dtype=torch.float32)
    model.eval()
    expected = {}
    prompts = make_prompts()
    for index, prompt in enumerate(prompts):
        expected[tuple(prompt)] = output = _generate(model, prompt)
        if index < NUM_ALONE:
            following = [*prompt, *output, 5]
            expected[tuple(following)] = _generate(model, following)
    return expected


def _generate(model: Any, prompt: Tokens) -> Tokens:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_OUTPUT_TOKENS, do_sample=False, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _judge_exact(result: RowResult, path: Path, expected: dict[tuple[int, ...], Tokens], dtype: str) -> None:
    """Compares the engine's output with `expected` alone, in a batch, and after a known beginning."""
    with collect_warnings() as warnings:
        core = build_core(path, _options())
    prompts = make_prompts()
    reused = 0
    for prompt in prompts[:NUM_ALONE]:
        output = _compare(result, f"{dtype}, alone", _run_batch(core, [prompt], "alone"), [prompt], expected)
        following = [*prompt, *output[0], 5]
        chunks, cached = _run_batch_counting(core, [following], "alone")
        _compare(result, f"{dtype}, after a known beginning", chunks, [following], expected)
        reused += cached
    _compare(result, f"{dtype}, in a batch", _run_batch(core, prompts, ""), prompts, expected)
    forward = core.forward
    result.reuses_prefixes = reused > 0
    result.path, result.reason = _describe_path(forward, warnings)


def _describe_path(forward: Any, warnings: list[str]) -> tuple[str, str]:
    """Returns the name of the path, and why it is the slow one."""
    marks = ("runs one sequence at a time: ", "serves one request at a time: ")
    reasons = [
        message.partition(mark)[2].partition(";")[0] for mark in marks for message in warnings if mark in message
    ]
    if isinstance(forward, SequentialForward):
        single = "one request at a time" if forward.max_num_seqs == 1 else "one sequence at a time"
        return single, "; ".join(reasons)
    uses_kernels = isinstance(forward, VarlenForward) and forward.uses_kernels
    return "packed, compiled attention" if uses_kernels else "packed", ""


def _compare(
    result: RowResult,
    place: str,
    outputs: list[Tokens],
    prompts: list[Tokens],
    expected: dict[tuple[int, ...], Tokens],
) -> list[Tokens]:
    """Records a fault if an output differs. Returns the outputs of `generate`."""
    wanted = [expected[tuple(prompt)] for prompt in prompts]
    wrong = sum(output != want for output, want in zip(outputs, wanted, strict=True))
    if wrong:
        result.faults.append(f"{place}: {wrong} of {len(prompts)} outputs differ from generate")
    return wanted


def _judge_form(path: Path, form: Quantization) -> FormResult:
    """Starts the engine with quantized weights, and compares output alone and in a batch."""
    try:
        with collect_warnings():
            core = build_core(path, msgspec.structs.replace(_options(), quantization=form, force_quantization=True))
        prompts = make_prompts()
        alone = [_run_batch(core, [prompt], "alone")[0] for prompt in prompts[:NUM_ALONE]]
        batch = _run_batch(core, prompts, "")
    except Exception as failure:  # noqa: BLE001  told in the table
        return FormResult(reason=f"{type(failure).__name__}: {failure}"[:200])
    match = SIMILARITY.search(core.info.description)
    return FormResult(
        similarity=float(match[1]) if match else None,
        depends_on_batch=alone != batch[:NUM_ALONE],
        packs_experts=_packs_experts(core.forward.model),  # type: ignore[attr-defined]
    )


def _packs_experts(model: nn.Module) -> bool | None:
    """Tells whether no matrix of an expert is left as a parameter; None for a model without experts."""
    has_experts = any(EXPERT_NAMES.search(name) for name, _ in model.named_modules())
    matrices = [name for name, weight in model.named_parameters() if weight.ndim > 1 and EXPERT_NAMES.search(name)]
    return not matrices if has_experts else None


def _options() -> EngineOptions:
    return EngineOptions(device="cpu", threads=1, kv_cache_gib=0.125, max_num_seqs=8, max_batched_tokens=64)


def _run_batch(core: Core, prompts: list[Tokens], owner: str) -> list[Tokens]:
    return _run_batch_counting(core, prompts, owner)[0]


def _run_batch_counting(core: Core, prompts: list[Tokens], owner: str) -> tuple[list[Tokens], int]:
    """Runs greedy jobs at once. Returns their tokens, and the number of prompt tokens read from the cache.

    Jobs without an `owner` get one each, so that they share no beginning.
    """
    outputs: list[Tokens] = [[] for _ in prompts]
    cached = 0
    for index, prompt in enumerate(prompts):
        sampling = Sampling(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
        core.add(Job(id=str(index), tokens=tuple(prompt), sampling=sampling, owner=owner or f"owner-{index}"))
    while core.has_work:
        for name, chunk in core.step():
            outputs[int(name)] += chunk.tokens
            cached += chunk.cached_tokens
            if chunk.fault is not None:
                raise RuntimeError(chunk.fault.message)
    return outputs, cached
