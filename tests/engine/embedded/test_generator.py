"""The dialogue generator: reproducible from a seed, and without evaluation words in the training dialogues."""

import re
from collections.abc import Iterator

import pytest

from antiphon.engine.embedded import generator, word_sampler
from antiphon.engine.embedded.chat import Dialogue
from antiphon.engine.embedded.fixed_texts import CODEX, RUNNERS
from antiphon.engine.embedded.skills import session_skills
from antiphon.engine.embedded.skills.codex_tools import TERMINAL_TOOLS
from antiphon.engine.embedded.tool_definitions import name_of

NUM_TRAINING_DIALOGUES = {"everything": 3000, "sessions": 1500}
"""By course. The other courses draw the same skills as the first."""
NUM_EVALUATION_DIALOGUES = 40
CODEX_NAMES = {"exec_command", "workdir", "yield_time_ms", "cmd"}.union(
    *({name, *(param.partition(":")[0] for param in params)} for name, params in [*CODEX, *TERMINAL_TOOLS])
)
"""Names of Codex's own tools and parameters, which training and evaluation share."""


def generate_training_dialogues() -> Iterator[Dialogue]:
    return (
        generator.training_dialogue(f"test {number}", course=course)
        for course, count in NUM_TRAINING_DIALOGUES.items()
        for number in range(count)
    )


def generate_evaluation_dialogues() -> Iterator[Dialogue]:
    return (
        generator.evaluation_dialogue(skill, number)
        for skill in generator.SKILLS
        for number in range(NUM_EVALUATION_DIALOGUES)
    )


def collect_tool_names(dialogues: Iterator[Dialogue]) -> set[str]:
    return {name_of(tool) for dialogue in dialogues for tool in dialogue.tools} - CODEX_NAMES


def collect_parameter_names(dialogues: Iterator[Dialogue]) -> set[str]:
    tools = [tool for dialogue in dialogues for tool in dialogue.tools]
    return {name for tool in tools for name in tool["function"]["parameters"]["properties"]} - CODEX_NAMES


def test_training_and_evaluation_share_no_tool_name() -> None:
    names = collect_tool_names(generate_evaluation_dialogues())
    assert len(names) > 500
    assert not names & collect_tool_names(generate_training_dialogues())


def test_training_and_evaluation_share_no_parameter_name() -> None:
    names = collect_parameter_names(generate_evaluation_dialogues())
    assert len(names) > 200
    assert not names & collect_parameter_names(generate_training_dialogues())


@pytest.mark.parametrize("source", ["NOUNS", "VERBS", "PARAMS", "NAMES", "COMMON", "PROGRAMS"])
def test_training_and_evaluation_draw_from_separate_words(source: str) -> None:
    words = getattr(word_sampler, source)
    for evaluation in (False, True):
        sampler = word_sampler.WordSampler("test", evaluation)
        sampled = {sampler.pick_word(words) for _ in range(200)}
        assert sampled
        assert all(word_sampler.is_held_out(word) is evaluation for word in sampled)


@pytest.mark.parametrize("method", ["made_up", "random_characters", "pick_noun", "pick_name", "any_word"])
def test_made_up_words_are_in_one_set_only(method: str) -> None:
    for evaluation in (False, True):
        sampler = word_sampler.WordSampler("test", evaluation)
        assert all(word_sampler.is_held_out(getattr(sampler, method)()) is evaluation for _ in range(300))


def test_only_runner_words_are_in_tool_names_of_both_sets() -> None:
    def split_names(names: set[str]) -> set[str]:
        words = {word for name in names for word in re.findall(r"[A-Z]?[a-z]+", name)}
        return {word.lower() for word in words if len(word) > 3}

    assert split_names(collect_tool_names(generate_evaluation_dialogues())) & split_names(
        collect_tool_names(generate_training_dialogues())
    ) <= {*RUNNERS}


def test_same_seed_gives_the_same_dialogues() -> None:
    for number in range(100):
        assert generator.training_dialogue(f"again {number}") == generator.training_dialogue(f"again {number}")
    for skill in generator.SKILLS:
        assert generator.evaluation_dialogue(skill, 3) == generator.evaluation_dialogue(skill, 3)
        assert generator.evaluation_dialogue(skill, 3) != generator.evaluation_dialogue(skill, 4)


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("run `echo antiphon-7391`", "Run echo antiphon-7391"),
        ("add 123 and 456 and then tell me the result", "Add 123 and 456"),
        ("What is it?", "What is it"),
        ('say "hi"', "Say"),
        ("`", "Task"),
    ],
)
def test_title_is_the_first_words_of_the_prompt(prompt: str, title: str) -> None:
    assert session_skills.title_of(prompt) == title


def test_evaluation_sums_are_not_in_the_training_set() -> None:
    def collect_sums(dialogues: Iterator[Dialogue]) -> set[str]:
        return {dialogue.messages[-1]["content"] for dialogue in dialogues if dialogue.skill == "sum"}

    assert not collect_sums(generator.evaluation_dialogue("sum", number) for number in range(200)) & collect_sums(
        generate_training_dialogues()
    )
