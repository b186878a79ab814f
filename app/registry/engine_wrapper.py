"""Engines that pass their jobs to another engine."""

from antiphon.engine.protocol import Engine, MediaSource


class EngineWrapper:
    """Base of an engine that passes its jobs to `inner`."""

    inner: Engine

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of the pictures of jobs."""
        self.inner.attach_media(source)


def unwrap_engine(engine: Engine) -> Engine:
    """Returns the engine that is recorded or loaded on demand, or the engine itself."""
    while isinstance(engine, EngineWrapper):
        engine = engine.inner
    return engine
