"""A draft model with another vocabulary is refused in one line, which has both sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.checkpoint.draft_vocabulary import check_draft_vocabulary
from antiphon.engine.errors import LoadError

WORDS = {"a": 0, "b": 1, "c": 2}


def write_folder(folder: Path, size: int, vocab: Any = None, added: Any = ()) -> Path:
    folder.mkdir()
    config = {"text_config": {"vocab_size": size}} if size % 2 else {"vocab_size": size}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if vocab is not None:
        tokenizer = {"model": {"vocab": vocab}, "added_tokens": list(added)}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def refusal_of(draft: Path, target: Path) -> str:
    with pytest.raises(LoadError) as raised:
        check_draft_vocabulary(draft, target)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_sizes_decide_without_tokenizers(tmp_path: Path) -> None:
    small, large = write_folder(tmp_path / "a", 96), write_folder(tmp_path / "b", 128, WORDS)
    check_draft_vocabulary(small, write_folder(tmp_path / "c", 96, WORDS))
    assert "another vocabulary, 96 tokens instead of the model's 128; choose a smaller" in refusal_of(small, large)
    assert "another vocabulary, 128 tokens instead of the model's 97" in refusal_of(
        large, write_folder(tmp_path / "d", 97)
    )


def test_tokens_decide_if_both_have_a_tokenizer(tmp_path: Path) -> None:
    target = write_folder(tmp_path / "target", 4, WORDS, [{"id": 3, "content": "<end>"}])
    same = write_folder(tmp_path / "same", 8, [["a", -1.0], ["b", -2], ["c", -3], ["<end>", 0]])
    check_draft_vocabulary(same, target)  # its other ids are unused
    fewer = write_folder(tmp_path / "fewer", 4, WORDS)
    assert "another vocabulary, 3 tokens instead of the model's 4" in refusal_of(fewer, target)
    other = write_folder(tmp_path / "other", 4, {"a": 0, "c": 1, "b": 2}, [{"id": 3, "content": "<end>"}])
    assert "of the same size, 4 tokens: 1 is 'c' there and 'b' here" in refusal_of(other, target)


def test_tokenizer_of_an_unknown_form_leaves_it_to_the_sizes(tmp_path: Path) -> None:
    odd = write_folder(tmp_path / "odd", 4)
    (odd / "tokenizer.json").write_text('{"model": {}}', encoding="utf-8")
    check_draft_vocabulary(odd, write_folder(tmp_path / "target", 4, WORDS))
