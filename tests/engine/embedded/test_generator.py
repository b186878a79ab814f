"""The dialogues: the same from the same seed, and evaluation's words never in training."""

import re
from collections.abc import Iterator

import pytest

from antiphon.engine.embedded import generator, word_sampler
from antiphon.engine.embedded.chat import Dialogue
from antiphon.engine.embedded.fixed_texts import CODEX, RUNNERS
from antiphon.engine.embedded.tool_definitions import name_of

TRAINING = 3000
EVALUATION = 40
WELL_KNOWN = {"exec_command", "workdir", "yield_time_ms", "cmd"}.union(*({name, *params} for name, params in CODEX))


def trained() -> Iterator[Dialogue]:
    return (generator.training_dialogue(f"test {number}") for number in range(TRAINING))


def evaluated() -> Iterator[Dialogue]:
    # Codex's own tools are the point of that skill, so its tools are on both sides; its commands are not.
    skills = [skill for skill in generator.SKILLS if skill != "codex"]
    return (generator.evaluation_dialogue(skill, number) for skill in skills for number in range(EVALUATION))


def tool_names(many: Iterator[Dialogue]) -> set[str]:
    return {name_of(tool) for one in many for tool in one.tools}


def parameter_names(many: Iterator[Dialogue]) -> set[str]:
    tools = [tool for one in many for tool in one.tools]
    return {name for tool in tools for name in tool["function"]["parameters"]["properties"]}


def test_training_and_evaluation_share_no_tool_name() -> None:
    offered = tool_names(evaluated())
    assert len(offered) > 500
    assert not offered & tool_names(trained())


def test_training_and_evaluation_share_no_parameter_name() -> None:
    offered = parameter_names(evaluated())
    assert len(offered) > 200
    assert not offered & parameter_names(trained())


@pytest.mark.parametrize("source", ["NOUNS", "VERBS", "PARAMS", "NAMES", "COMMON", "PROGRAMS"])
def test_each_list_is_cut_in_two_and_each_side_draws_from_its_own(source: str) -> None:
    listed = getattr(word_sampler, source)
    for evaluation in (False, True):
        drawn = word_sampler.WordSampler("test", evaluation)
        picked = {drawn.pick_word(listed) for _ in range(200)}
        assert picked
        assert all(word_sampler.is_held_out(word) is evaluation for word in picked)


@pytest.mark.parametrize("kind", ["made_up", "random_characters", "pick_noun", "pick_name", "any_word"])
def test_made_up_words_lie_on_one_side_too(kind: str) -> None:
    for evaluation in (False, True):
        drawn = word_sampler.WordSampler("test", evaluation)
        assert all(word_sampler.is_held_out(getattr(drawn, kind)()) is evaluation for _ in range(300))


def test_the_runners_are_the_only_words_of_tool_names_on_both_sides() -> None:
    def parts(names: set[str]) -> set[str]:
        pieces = {piece for name in names for piece in re.findall(r"[A-Z]?[a-z]+", name)}
        return {piece.lower() for piece in pieces if len(piece) > 3}

    assert parts(tool_names(evaluated())) & parts(tool_names(trained()) - WELL_KNOWN) <= {*RUNNERS}


def test_the_same_seed_gives_the_same_dialogues() -> None:
    for number in range(100):
        assert generator.training_dialogue(f"again {number}") == generator.training_dialogue(f"again {number}")
    for skill in generator.SKILLS:
        assert generator.evaluation_dialogue(skill, 3) == generator.evaluation_dialogue(skill, 3)
        assert generator.evaluation_dialogue(skill, 3) != generator.evaluation_dialogue(skill, 4)


def test_sums_of_the_evaluation_are_not_taught() -> None:
    def pairs(many: Iterator[Dialogue]) -> set[str]:
        return {one.messages[-1]["content"] for one in many if one.skill == "sum"}

    assert not pairs(generator.evaluation_dialogue("sum", number) for number in range(200)) & pairs(trained())
