"""Creates the embedding and reranking models that the options name, with engines that are not started."""

import asyncio
import time
from functools import partial
from pathlib import Path

from antiphon.app.models.options import default_name
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.registry.model_registry import EncoderModel
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embeddings.repository import EncoderKind, read_repository
from antiphon.engine.embeddings.worker import CORE_FACTORIES
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine


async def create_encoders(options: ServeOptions) -> list[EncoderModel]:
    """Returns the models, whose engines are not started. Raises `ServeError` or `LoadError`."""
    sources: list[tuple[EncoderKind, str]] = [
        *(("embedding", source) for source in options.embedding_models),
        *(("rerank", source) for source in options.rerank_models),
    ]
    fetch = partial(fetch_checkpoint, offline=options.offline, with_modules=True)
    models = []
    for kind, source in sources:
        folder = await asyncio.to_thread(fetch, source)
        models.append(create_encoder(folder, kind, default_name(source), options.engine_options))
    return models


def create_encoder(folder: Path, kind: EncoderKind, name: str, options: EngineOptions) -> EncoderModel:
    """Returns the model in a folder. Raises `ServeError` or `LoadError`."""
    modules = read_repository(folder, kind)
    prompt = modules.prompt if kind == "embedding" else ""
    try:
        tokenizer = TextTokenizer(modules.transformer, lower_case=modules.lower_case, prompt=prompt)
    except Exception as error:  # noqa: BLE001  # the library raises nothing more specific
        raise ServeError(f"{modules.transformer / 'tokenizer.json'}: not readable ({error})") from None
    # Limits and optimizations of the model that generates text do not apply.
    own_options = EngineOptions(device=options.device, threads=options.threads)
    engine = ProcessEngine(folder, own_options, core_factory=CORE_FACTORIES[kind])
    return EncoderModel(
        names=(name,), kind=kind, engine=engine, tokenizer=tokenizer, created=int(time.time()), folder=folder
    )
