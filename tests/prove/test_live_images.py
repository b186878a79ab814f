"""Pictures on a real llama.cpp, with random weights: the handshake, counts, refusals."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from antiphon.app.remote.image_probe import build_image_probe
from antiphon.engine.media_messages import MediaArrays, MediaSpan
from antiphon.engine.protocol import Chunk, EngineError, Job, Sampling
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.model_files import describe_model
from antiphon.engine.remote.options import RemoteOptions
from antiphon.engine.remote.transport.endpoint import parse_endpoint
from antiphon.events.inputs import InputImage, InputMessage, InputText
from antiphon.harmony.detection.detect import load_format
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.image_tokens import PromptImage
from antiphon.harmony.rendered_prompt import RenderError
from tests.app.media.pictures import make_png
from tests.harmony.image_models import IMAGE_TEMPLATES_FOLDER
from tests.prove.live_engines import run_vision_server

ROWS = 16 + 2
"""Tokens of a picture: 16 rows, and a token before and behind them that the server writes."""
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
PICTURES = {b"a" * 32: make_png(96, 64), b"b" * 32: b"\x89PNG\r\n\x1a\nbroken"}


class PngSource:
    """Has a picture, and one that no engine can read."""

    secret = b"s"

    async def load_arrays(self, job: Job, key: bytes) -> MediaArrays:
        raise AssertionError(job.id)

    async def load_png(self, job: Job, key: bytes) -> bytes:
        return PICTURES[key]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[("a", "b")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*TOKENS, "<start_of_image>", "<end_of_image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "qwen3_vl",
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "text_config": {"vocab_size": tokenizer.get_vocab_size()},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    template = (IMAGE_TEMPLATES_FOLDER / "qwen3-vl.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with run_vision_server(folder) as url:
        yield url


def build_job(form: ModelFormat, *parts: InputText | InputImage) -> Job:
    """Returns a job for a message of the user. Its pictures are named after their keys."""
    images = {(name, None): PromptImage(key=name.encode() * 32, rows=0, form="text") for name in ("a", "b")}
    conversation = PromptInput(items=(InputMessage(role="user", content=parts),), images=images)
    prompt = form.render_prompt(conversation, now=datetime(2026, 1, 1))  # noqa: DTZ001 - prompts have no time zone
    spans = (MediaSpan(key=span.key, offset=span.offset, length=0, rows=0) for span in prompt.media)
    sampling = Sampling(temperature=0, max_tokens=6, ignore_eos=True)
    return Job(id="job", tokens=prompt.tokens, texts=prompt.texts, media=tuple(spans), sampling=sampling)


async def test_llama_cpp_reads_pictures(folder: Path, url: str) -> None:
    form = load_format(folder, "hermes").format
    model, info = describe_model(folder, max_model_len=None, grammar_probe=None, stop_ids=form.stop_ids)
    model = msgspec.structs.replace(model, image_probe=build_image_probe(form))
    engine = RemoteEngine(RemoteOptions(endpoints=(parse_endpoint(url),), grammar="off"), model, info)
    engine.attach_media(PngSource())
    await engine.start()
    try:
        assert (engine.info.image_form, engine.info.image_refusal) == ("text", "")
        picture, words = InputImage(image_url="a"), InputText(text="What?")
        for parts in ((words, picture), (picture, words, picture), (picture, picture)):
            chunks: list[Chunk] = []
            job = build_job(form, *parts)
            await engine.generate(job, chunks.append)
            expected = len(job.tokens) + ROWS * sum(part is picture for part in parts)
            assert max(chunk.prompt_tokens for chunk in chunks) == expected
        with pytest.raises(EngineError) as caught:
            await engine.generate(build_job(form, InputImage(image_url="b")), chunks.append)
        assert caught.value.code == "media_refused"
        with pytest.raises(RenderError, match="control tokens"):
            build_job(form, InputText(text="a<|im_end|>b"), picture)
    finally:
        await engine.close()
