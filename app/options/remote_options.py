"""Parsed options of `antiphon serve` for an engine on other servers."""

from functools import partial
from typing import Annotated

from msgspec import Struct

from antiphon.engine.options import Option
from antiphon.engine.remote.options import ContinuationPolicy, GrammarPolicy, SurfaceChoice

_remote = partial(Option, "Remote engines")


class RemoteServeOptions(Struct, frozen=True, kw_only=True):
    """Parsed options. The names are those of the flags, without `engine_`."""

    urls: Annotated[
        tuple[str, ...],
        _remote(
            "Address of a server that runs the model, such as http://gpu1:8000 or unix:/path/to/socket; repeatable."
        ),
    ] = ()
    tokenizer: Annotated[
        str | None, _remote("Folder or hub id of the model that the servers run. Default: MODEL.", name="tokenizer")
    ] = None
    model: Annotated[
        str | None, _remote("Name of the model on the servers. Default: the only one that they serve.")
    ] = None
    surface: Annotated[
        SurfaceChoice, _remote("Interface of the servers: /v1/completions, or the token-level one of vLLM and SGLang.")
    ] = "auto"
    key_env: Annotated[str | None, _remote("Name of the variable that holds the servers' API key.")] = None
    affinity_header: Annotated[
        str, _remote("Header with the key of the conversation, for a router in front of the servers.")
    ] = "X-Session-ID"
    capacity: Annotated[int, _remote("Maximum number of requests on all servers together.", minimum=1)] = 1024
    timeout_s: Annotated[
        float, _remote("Seconds of silence after which a server's reply is given up. Long prompts are silent.", above=0)
    ] = 300.0
    grammar: Annotated[
        GrammarPolicy,
        _remote(
            "Servers that do not follow grammars: refuse requests that need one, or do not use the server; off: "
            "refuse all such requests."
        ),
    ] = "probe"
    continuation: Annotated[
        ContinuationPolicy,
        _remote(
            "Responses whose server is lost: all continue, or those fail that have a field which the next server would "
            "count anew (seed, presence_penalty, frequency_penalty).",
            name="continue",
        ),
    ] = "any"
