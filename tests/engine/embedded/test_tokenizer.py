"""A model can copy only what it has met: the tokens of what people try first stand in the training texts."""

from tokenizers import Tokenizer

from antiphon.engine.embedded import MODEL_DIR, tokenizer


def test_the_words_of_the_first_command_are_taught() -> None:
    shipped = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    met = {token for text in tokenizer.render_corpus(7, 800) for token in shipped.encode(text).ids}
    asked = shipped.encode("run `echo antiphon-7391`")
    assert not [asked.tokens[n] for n, token in enumerate(asked.ids) if token not in met]


def test_what_is_only_on_the_way_to_a_word_is_no_token() -> None:
    learned = tokenizer.build_tokenizer(count=300)
    met = {token for text in tokenizer.render_corpus(0, 300) for token in learned.encode(text).ids}
    joined = {number for token, number in learned.get_vocab().items() if len(token) > 1 and "<" not in token}
    assert joined <= met
    assert learned.decode(learned.encode("antiphon Antiphon").ids) == "antiphon Antiphon"
