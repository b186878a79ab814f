"""Creation of the models of `--embedding-model` and `--rerank-model`, and their tokenizer."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.assembly import encoders as assembly
from antiphon.app.assembly.models import create_registry
from antiphon.app.observability.startup import create_console, show_banner
from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import EngineInfo
from tests.engine.embeddings.tiny_repositories import VOCABULARY, save_tokenizer, token_ids, write_json, write_modules
from tests.serving import scripted_registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository without real weights."""
    folder = tmp_path / "bert"
    save_tokenizer(folder)
    write_json(folder / "config.json", {"model_type": "bert"})
    (folder / "model.safetensors").write_bytes(b"")
    write_modules(folder, ("mean",))
    return folder


async def test_models_are_fetched_with_their_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []

    def fetch(source: str, **options: Any) -> Path:
        fetched.append((source, options))
        return folder

    monkeypatch.setattr(assembly, "fetch_checkpoint", fetch)
    options = ServeOptions(embedding_models=("org/embed", str(folder)), rerank_models=("org/rerank",), offline=True)
    models = await assembly.create_encoders(options)
    assert [(model.names, model.kind) for model in models] == [
        (("org/embed",), "embedding"),
        (("bert",), "embedding"),
        (("org/rerank",), "rerank"),
    ]
    assert fetched[0] == ("org/embed", {"offline": True, "with_modules": True})


async def test_names_must_differ(folder: Path) -> None:
    encoders = await assembly.create_encoders(
        ServeOptions(embedding_models=(str(folder),), rerank_models=(str(folder),))
    )
    chat = scripted_registry([{"name": "any", "output": ["Yes."]}]).served[0]
    with pytest.raises(ServeError, match="duplicate model name 'bert': each model needs a name of its own"):
        create_registry([chat], encoders, [ServeOptions()])


async def test_unusable_model_is_refused_in_one_line(folder: Path) -> None:
    with pytest.raises(LoadError, match="no such folder, and not a hub id"):
        await assembly.create_encoders(ServeOptions(embedding_models=("/nowhere",)))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ServeError, match=r"tokenizer\.json: not readable"):
        await assembly.create_encoders(ServeOptions(embedding_models=(str(folder),)))


async def test_banner_says_how_texts_become_vectors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = await assembly.create_encoders(ServeOptions(embedding_models=(str(folder),)))
    note = "BertModel, 1.0 M parameters; mean pooling, by modules.json"
    encoders[0].engine._info = EngineInfo(max_model_len=64, vocab_size=9, description=note)  # type: ignore[attr-defined]
    chat = scripted_registry([{"name": "any", "output": ["Yes."]}])
    screen = io.StringIO()
    show_banner(create_console(screen), Settings(), ModelRegistry(chat.served, encoders), 8000, {})
    assert "bert" in screen.getvalue() and "mean pooling, by modules.json" in " ".join(screen.getvalue().split())


# The tokenizer


def test_file_of_the_tokenizer_cuts_and_pads_nothing(folder: Path) -> None:
    texts = ["the cat", "the cat sat on the red mat"]
    tokens = [list(each.tokens) for each in TextTokenizer(folder).encode_texts(texts)]
    assert tokens == [token_ids(text) for text in texts]


@pytest.mark.parametrize("direction", ["right", "left"])
def test_text_is_cut_between_its_special_tokens(folder: Path, direction: str) -> None:
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"]["direction"] = direction.capitalize()
    write_json(folder / "tokenizer.json", state)
    text = "the cat sat on the red mat"
    (cut,) = TextTokenizer(folder).encode_texts([text], 5)
    inner = token_ids(text)[1:-1]
    kept = inner[:3] if direction == "right" else inner[-3:]
    assert list(cut.tokens) == [VOCABULARY["[CLS]"], *kept, VOCABULARY["[SEP]"]]
    whole, again = (TextTokenizer(folder).encode_texts([text], limit)[0] for limit in (None, 50))
    assert whole == again


def test_pair_has_two_parts_and_is_cut_at_the_longer_one(folder: Path) -> None:
    tokenizer = TextTokenizer(folder)
    (pair,) = tokenizer.encode_texts([("the cat", "a dog ran")])
    assert list(pair.tokens) == [*token_ids("the cat"), *token_ids("a dog ran")[1:]] and pair.first_part == 4
    (cut,) = tokenizer.encode_texts([("the cat", "a dog ran on the mat")], 8)
    assert list(cut.tokens) == [*token_ids("the cat"), *token_ids("a dog ran")[1:]]


def test_prompt_and_case(folder: Path) -> None:
    tokenizer = TextTokenizer(folder, lower_case=True, prompt="The red ")
    (text,) = tokenizer.encode_texts(["FOX"])
    assert list(text.tokens) == token_ids("the red fox")
    (pair,) = tokenizer.encode_texts([("THE", "Cat")])
    assert list(pair.tokens) == [*token_ids("the"), *token_ids("cat")[1:]]
