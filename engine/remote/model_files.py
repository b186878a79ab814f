"""Describes the model of a remote engine from its tokenizer and configuration here. Reads no weights."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from antiphon.engine.checkpoint.generation_settings import read_eos_ids, sampling_defaults
from antiphon.engine.checkpoint.vision_families import read_soft_ids
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.regular_files import read_json
from antiphon.engine.remote.options import GrammarProbe, RemoteModel, TokenizerCheck
from antiphon.engine.remote.vocabulary import Vocabulary

CHECK_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs.\n\tdef f(x): return x**2  # 3.14159265358979\n"
    "Ünïcödé, Ελληνικά, русский, 漢字とかな, العربية, हिन्दी, 🙂👩‍👩‍👧 ﬁ 12345678901234567890 don't I'LL\r\n\n  end"
)
"""Text with characters of every length in UTF-8, numbers, blanks and contractions."""
MAX_CHECKED_TOKENS = 256
"""Maximum number of added tokens in the check."""


def describe_model(
    folder: Path,
    *,
    max_model_len: int | None,
    grammar_probe: Callable[[int], str] | None,
    stop_ids: Iterable[int],
    relax_grammar: Callable[[str], str] = str,
) -> tuple[RemoteModel, EngineInfo]:
    """Returns the model and the engine's fixed properties. Raises `LoadError`.

    `stop_ids`: the dialect's own, besides those of the model's configuration. `grammar_probe` builds a grammar that
    begins with a given token, and `relax_grammar` what an engine with an older grammar library may generate.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        raise LoadError(f"{folder}: no tokenizer.json; give the model's folder or hub id with --tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise LoadError(f"{file} cannot be read ({error}); fetch it again") from error
    config, generation = _read_object(folder / "config.json"), _read_object(folder / "generation_config.json")
    nested = config.get("text_config")
    text_config = nested if isinstance(nested, dict) else config
    eos_ids = read_eos_ids(generation, text_config.get("eos_token_id", config.get("eos_token_id")))
    eos_ids = tuple(dict.fromkeys((*eos_ids, *stop_ids)))
    vocab_size = max(int(text_config.get("vocab_size") or 0), tokenizer.get_vocab_size(with_added_tokens=True))
    check = _build_check(tokenizer)
    first_id = _choose_first_token(tokenizer, check)
    model = RemoteModel(
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        tokenizer_file=file,
        tokenizer_check=check,
        vocabulary=Vocabulary(tokenizer),
        added_tokens=_list_added_tokens(tokenizer),
        grammar_probe=None if grammar_probe is None else GrammarProbe(grammar_probe(first_id), first_id),
        relax_grammar=relax_grammar,
        model_type=str(config.get("model_type", "")),
    )
    info = EngineInfo(
        max_model_len=max_model_len or 0,
        vocab_size=vocab_size,
        device="remote",
        default_sampling=sampling_defaults(generation),
        eos_ids=eos_ids,
        soft_ids=tuple(token for token in read_soft_ids(config.get) if token < vocab_size),
        architecture=str(config.get("model_type", "")),
    )
    return model, info


def _list_added_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.get_added_tokens_decoder().items()
    return {token: each.content for token, each in added if not each.content.isspace()}


def _choose_first_token(tokenizer: Tokenizer, check: TokenizerCheck) -> int:
    """Returns a token for the start of the grammar probe: an added one that no server takes for a control token."""
    markers = [token for token, added in tokenizer.get_added_tokens_decoder().items() if not added.special]
    return min(markers) if markers else check.ids[-1]


def _build_check(tokenizer: Tokenizer) -> TokenizerCheck:
    """Returns a text with the added tokens and their ids. The added tokens come first."""
    added = sorted(tokenizer.get_added_tokens_decoder().items())[:MAX_CHECKED_TOKENS]
    text = "".join(f"{token.content} " for _, token in added) + CHECK_TEXT
    ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    plain = tuple(tokenizer.encode(CHECK_TEXT, add_special_tokens=False).ids)
    return TokenizerCheck(text, ids, lambda token: tokenizer.decode([token], skip_special_tokens=False), plain)


def _read_object(path: Path) -> dict[str, Any]:
    table = read_json(path) if path.exists() else None
    return table if isinstance(table, dict) else {}
