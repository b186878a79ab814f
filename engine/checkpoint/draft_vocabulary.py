"""Compares the vocabulary of a draft model with that of the model it drafts for. Needs no torch."""

from itertools import chain
from pathlib import Path
from typing import Any

from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import read_json_object

REMEDY = "choose a smaller model of the same family, or leave --draft-model out"


def check_draft_vocabulary(draft: Path, target: Path) -> None:
    """Raises `LoadError` unless a draft model in one folder has the vocabulary of the model in the other.

    The tokens in tokenizer.json decide if both folders have one: then the models may have different numbers of unused
    ids behind them. Otherwise the sizes in config.json must be equal.
    """
    drafted, wanted = _read_tokens(draft), _read_tokens(target)
    if drafted is None or wanted is None:
        sizes = [_read_size(folder) for folder in (draft, target)]
        if sizes[0] != sizes[1]:
            raise _explain_sizes(draft, *sizes)
    elif len(drafted) != len(wanted):
        raise _explain_sizes(draft, len(drafted), len(wanted))
    elif drafted != wanted:
        token = min(token for token in wanted if drafted.get(token) != wanted[token])
        raise LoadError(
            f"{draft}: the draft model has another vocabulary of the same size, {len(wanted)} tokens: {token} is "
            f"{drafted.get(token)!r} there and {wanted[token]!r} here; {REMEDY}"
        )


def _explain_sizes(draft: Path, size: int | None, wanted: int | None) -> LoadError:
    return LoadError(
        f"{draft}: the draft model has another vocabulary, {size} tokens instead of the model's {wanted}; {REMEDY}"
    )


def _read_size(folder: Path) -> int | None:
    """Returns the number of ids in a model's configuration; None if it has none."""
    config = read_json_object(folder / "config.json")
    nested = config.get("text_config")
    size = (nested if isinstance(nested, dict) else config).get("vocab_size", config.get("vocab_size"))
    return size if isinstance(size, int) else None


def _read_tokens(folder: Path) -> dict[int, str] | None:
    """Returns the tokens of tokenizer.json by id; None without that file, or for a form that is not known."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    content: Any = read_json_object(file)
    vocab, added = content.get("model", {}).get("vocab"), content.get("added_tokens") or []
    if isinstance(vocab, dict):
        pairs = ((token, text) for text, token in vocab.items())
    elif isinstance(vocab, list):
        pairs = ((token, str(entry[0])) for token, entry in enumerate(vocab))
    else:
        return None
    return dict(chain(pairs, ((int(each["id"]), str(each["content"])) for each in added)))
