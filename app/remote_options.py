"""Parsed options of `antiphon serve` for an engine on other servers."""

from msgspec import Struct

from antiphon.engine.remote.options import GrammarPolicy, SurfaceChoice


class RemoteServeOptions(Struct, frozen=True, kw_only=True):
    """Parsed options. The names are those of the flags, without `engine_`."""

    urls: tuple[str, ...] = ()
    tokenizer: str | None = None
    """Folder or hub id of the model that the servers run. None: the argument MODEL."""
    model: str | None = None
    surface: SurfaceChoice = "auto"
    key_env: str | None = None
    """Variable that holds the key of the servers."""
    affinity_header: str = "X-Session-ID"
    capacity: int = 1024
    timeout_s: float = 300.0
    grammar: GrammarPolicy = "probe"
