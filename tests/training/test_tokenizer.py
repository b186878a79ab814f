"""The embedded tokenizer: a model can copy only trained tokens, so common first inputs must be in the training texts."""

from tokenizers import Tokenizer

from antiphon.engine.embedded import MODEL_DIR
from training import tokenizer


def test_tokens_of_the_example_command_are_trained() -> None:
    shipped_tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    trained = {token for text in tokenizer.render_corpus(7, 800) for token in shipped_tokenizer.encode(text).ids}
    prompt = shipped_tokenizer.encode("run `echo antiphon-7391`")
    assert not [prompt.tokens[index] for index, token in enumerate(prompt.ids) if token not in trained]


def test_vocabulary_contains_no_unused_merges() -> None:
    built = tokenizer.build_tokenizer(count=300)
    trained = {token for text in tokenizer.render_corpus(0, 300) for token in built.encode(text).ids}
    merged = {number for token, number in built.get_vocab().items() if len(token) > 1 and "<" not in token}
    assert merged <= trained
    assert built.decode(built.encode("antiphon Antiphon").ids) == "antiphon Antiphon"
