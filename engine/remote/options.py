"""Options of a remote engine. The command line builds them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from antiphon.engine.remote.backend_apis.base import EngineKind
from antiphon.engine.remote.images.pictures import ImageProbe
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.engine.remote.vocabulary import Vocabulary

if TYPE_CHECKING:
    from antiphon.engine.remote.grammars.follower import GrammarFollowers

SurfaceChoice = Literal["auto", "completions", "generate"]
MAX_LISTED_NAMES = 8
ContinuationPolicy = Literal["any", "strict"]
GrammarPolicy = Literal["probe", "require", "off"]


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the replicas of an engine, and what to expect of them."""

    endpoints: tuple[RemoteEndpoint, ...]
    kind: EngineKind | None = None
    """None: found out from the server."""
    model: str | None = None
    """Name of the model on the servers. None: the only one that they serve."""
    surface: SurfaceChoice = "auto"
    affinity_header: str = "X-Session-ID"
    """Header that carries the key of the conversation, for routers that keep one on the same replica."""
    capacity: int = 1024
    """Maximum number of jobs at once."""
    silence_timeout_s: float = 300.0
    """Silence of a server after which a job fails. A long prompt is silent until its first token."""
    grammar: GrammarPolicy = "probe"
    """`probe`: serve without grammars if a server does not follow them; `require`: do not; `off`: never use them."""
    continuation: ContinuationPolicy = "any"
    """`strict`: a job whose server was lost fails if it has fields that the next server would count anew."""
    separate_owners: bool = False
    """True if clients have keys, so that one must not find another's prompts in a cache."""


class RemoteTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits and intervals, in seconds."""

    retry_window_s: float = 5.0
    """Time within which a job waits for a replica while none is up, and is tried again if it got no token."""
    continue_within_s: float = 60.0
    """Time within which an admitted job continues after its server was lost, there or on another one. 0: it fails."""
    final_count_grace_s: float = 0.05
    """Time that the last chunk waits for the count of cached tokens."""
    health_interval_s: float = 2.0
    """Time between two questions for the health of a replica."""
    health_timeout_s: float = 10.0
    """Longest wait for the answer."""
    min_reconnect_delay_s: float = 0.2
    """Delay after a handshake that failed, doubled each time."""
    max_reconnect_delay_s: float = 5.0
    """Longest delay between two handshakes."""
    handshake_timeout_s: float = 60.0
    """Limit of each step of a handshake. The first grammar may take an engine seconds to prepare."""


class TokenizerCheck(msgspec.Struct, frozen=True):
    """A text and its token ids here, to compare with the engine's tokenizer. `decode` returns the text of one token."""

    text: str
    ids: tuple[int, ...]
    decode: Callable[[int], str]
    probe_prompt: tuple[int, ...] = (0,)
    """Token ids of a prompt for short jobs. It has no added tokens: after an end of reasoning in the prompt, vLLM with
    a reasoning parser follows a grammar that it ignores in real prompts."""


class GrammarProbe(msgspec.Struct, frozen=True):
    """A grammar with every construct that the dialects use, whose first token must be `first_id`."""

    grammar: str
    first_id: int


class RemoteModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model, as its tokenizer and configuration here describe it."""

    max_model_len: int | None
    """Context length in tokens. None: the server's."""
    vocab_size: int
    eos_ids: tuple[int, ...]
    tokenizer_file: Path | None
    """File of the tokenizer, to follow grammars with. None: grammars are not available."""
    tokenizer_check: TokenizerCheck
    vocabulary: Vocabulary | None = None
    """Tokens to compare with the engine's. None: only the text is compared."""
    grammar_probe: GrammarProbe | None
    added_tokens: Mapping[int, str] = {}
    """Texts of the added tokens by id, without those of blanks alone. Grammars match them by id only."""
    model_type: str = ""
    image_probe: ImageProbe | None = None
    """Prompt with a picture for the handshake. None: the model sees no pictures."""
    relax_grammar: Callable[[str], str] = str
    """Returns what an engine with an older grammar library may generate under a grammar."""


class RemoteSetup(msgspec.Struct, frozen=True):
    """The settings that the parts of one remote engine share."""

    options: RemoteOptions
    model: RemoteModel
    followers: "GrammarFollowers | None"
    """None if the engine has no grammars."""
    timeouts: RemoteTimeouts


def list_names(names: Sequence[str]) -> str:
    """Returns names for a message, such as `'a', 'b'`. Of many names, the first ones."""
    rest = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:MAX_LISTED_NAMES]) + rest
