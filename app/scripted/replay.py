"""Options of the command line around scripts: which engine plays one, and what a recording says about its model."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import structs

from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.scripted.recording_engine import RecordingEngine
from antiphon.app.scripted.recording_file import RecordingFile
from antiphon.engine.checkpoint.hub import fetch_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Engine, EngineInfo
from antiphon.engine.scripted.engine import DEFAULT_INFO, ScriptedEngine, load_script
from antiphon.engine.scripted.script import Recording, load_recording
from antiphon.harmony.detection import detect
from antiphon.harmony.detection.detect import LoadedFormat

EMBEDDED_TOKENIZER = "embedded"
"""Name of the embedded model's tokenizer in a recording: its folder differs between installations."""
DEFAULT_DIALECT = "hermes"


async def create_scripted_engine(options: ServeOptions) -> tuple[Engine, LoadedFormat, str]:
    """Returns the engine of a script, its format, and the model's name. Raises `ServeError` or `ScriptError`."""
    if options.script is None:
        raise ServeError("--engine scripted needs --script FILE")
    replies, recording = load_script(options.script), load_recording(options.script)
    if recording is None:
        dialect = options.dialect or DEFAULT_DIALECT
        loaded = _create_bytes_format(dialect)
        info = structs.replace(DEFAULT_INFO, eos_ids=loaded.format.stop_ids[:1])
        name, pause_scale = "scripted", 1.0
    else:
        loaded = await _load_recorded_format(options, recording)
        info, name, pause_scale = recording.engine, recording.model, recording.pause_scale
    engine = ScriptedEngine(
        replies, encode=loaded.format.encode, decode=loaded.format.decode, info=info, pause_scale=pause_scale
    )
    return engine, loaded, name


def record_engine(options: ServeOptions, engine: Engine, loaded: LoadedFormat, name: str) -> Engine:
    """Returns the engine, with its jobs recorded if the options ask for it. Raises `ServeError`."""
    if options.record is None:
        return engine
    file = RecordingFile(options.record, loaded.format.decode)
    return RecordingEngine(engine, file, _describe_model(options, loaded, name))


def _describe_model(options: ServeOptions, loaded: LoadedFormat, name: str) -> Callable[[EngineInfo], Recording]:
    known = load_recording(options.script) if options.script is not None else None
    if known is not None:
        return lambda info: structs.replace(known, engine=info)
    template = None if options.chat_template is None else options.chat_template.read_text(encoding="utf-8")
    return lambda info: Recording(
        model=name,
        dialect=loaded.format.name,
        engine=info,
        tokenizer=_name_tokenizer(options),
        revision=options.revision,
        chat_template=template,
    )


def _name_tokenizer(options: ServeOptions) -> str:
    if options.engine == "scripted":
        return ""
    source = options.remote.tokenizer or options.model
    if source is None:
        return EMBEDDED_TOKENIZER
    return str(Path(source).resolve()) if Path(source).exists() else source


async def _load_recorded_format(options: ServeOptions, recording: Recording) -> LoadedFormat:
    """Returns the format that the token ids of a recording belong to. Raises `ServeError`."""
    source = options.remote.tokenizer or recording.tokenizer
    dialect = options.dialect or recording.dialect
    if not source:
        return _create_bytes_format(dialect)
    if source == EMBEDDED_TOKENIZER:
        folder = MODEL_DIR
    else:
        fetch = partial(fetch_checkpoint, offline=options.offline, revision=recording.revision, with_weights=False)
        try:
            folder = await asyncio.to_thread(fetch, source)
        except LoadError as error:
            remedy = "name the folder or hub id of the model with --tokenizer"
            message = f"{options.script}: recorded with the tokenizer {source}, which cannot be loaded; {remedy}"
            raise ServeError(f"{message} ({error})") from None
    loaded = detect.load_format(folder, options.dialect, recording.chat_template)
    if loaded.format.name != dialect:
        loaded = detect.load_format(folder, dialect, recording.chat_template)
    return loaded


def _create_bytes_format(dialect: str) -> LoadedFormat:
    return LoadedFormat(detect.bytes_format(dialect), f"dialect {dialect}: byte vocabulary of the scripted engine")
