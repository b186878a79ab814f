"""The draft model of a served model: its files, the checks before anything is loaded, and its memory."""

import asyncio
from pathlib import Path

from msgspec import structs

from antiphon.app.models.memory import MemoryEstimate, estimate_weights
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.engine.checkpoint.draft_vocabulary import check_draft_vocabulary
from antiphon.engine.checkpoint.files import Checkpoint, inspect_checkpoint
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.options import EngineOptions


def check_draft_options(options: ServeOptions) -> None:
    """Raises `ServeError` if the engine runs on another server, or replays a script."""
    if options.engine_options.draft_model is not None and options.engine != "torch":
        remedy = "" if options.engine == "scripted" else ": give the draft model to the engine's own server"
        raise ServeError(f"--draft-model requires --engine torch{remedy}")


async def fetch_draft_model(options: ServeOptions, target: Path) -> EngineOptions:
    """Returns the engine's options with the folder of the draft model for the model in `target`, which is checked.

    Raises `LoadError`.
    """
    engine = options.engine_options
    if engine.draft_model is None:
        return engine
    folder = await asyncio.to_thread(fetch_checkpoint, engine.draft_model, offline=options.offline, revision=None)
    inspect_checkpoint(folder)
    await asyncio.to_thread(check_draft_vocabulary, folder, target)
    return structs.replace(engine, draft_model=str(folder))


def estimate_with_draft(target: Checkpoint, options: EngineOptions) -> MemoryEstimate:
    """Returns an estimate of the weights of a model and of its draft model, whose folder the options name."""
    checkpoints = [target]
    if options.draft_model is not None:
        checkpoints.append(inspect_checkpoint(Path(options.draft_model)))
    estimates = [estimate_weights(checkpoint, options) for checkpoint in checkpoints]
    return MemoryEstimate(sum(each.least for each in estimates), sum(each.expected for each in estimates))
