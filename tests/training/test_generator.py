"""The dialogue generator: reproducible from a seed, and without evaluation words in the training dialogues."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest

from antiphon.events.builtin_calls import CreateFile, DeleteFile, UpdateFile
from antiphon.harmony.prompt.builtin_items import write_patch
from training import file_requests, generator, shell_commands, word_sampler
from training.chat import Dialogue
from training.fixed_texts import CODEX, RUNNERS
from training.skills import patch_skills, question_skills, session_skills, shell_skills
from training.skills.claude_code_tools import CLAUDE_CODE_TOOLS
from training.skills.codex_tools import TERMINAL_TOOLS
from training.tool_definitions import name_of

NUM_TRAINING_DIALOGUES = {"everything": 3000, "sessions": 1500, "shell": 600, "patch": 600, "questions": 600}
"""By course. The other courses draw the same skills as the first."""
NUM_EVALUATION_DIALOGUES = 40
SHELL_NAMES = {"shell", "commands", "timeout_ms", "max_output_length"}
AGENT_NAMES = {"exec_command", "workdir", "yield_time_ms", "cmd", *SHELL_NAMES}.union(
    *(
        {name, *(param.partition(":")[0] for param in params)}
        for name, params in [*CODEX, *TERMINAL_TOOLS, *CLAUDE_CODE_TOOLS]
    )
)
"""Names of the built-in tools, of those of Codex and Claude Code, and of their parameters, which training and evaluation share."""

KINDS = {"Add": CreateFile, "Update": UpdateFile}


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
    return {name_of(tool) for dialogue in dialogues for tool in dialogue.tools} - AGENT_NAMES


def collect_parameter_names(dialogues: Iterator[Dialogue]) -> set[str]:
    tools = [tool for dialogue in dialogues for tool in dialogue.tools]
    return {name for tool in tools for name in tool["function"]["parameters"]["properties"]} - AGENT_NAMES


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


def test_requests_that_imply_a_command_are_in_one_set_only() -> None:
    requests = {
        evaluation: {
            shell_commands.make_implied_command(word_sampler.WordSampler(f"implied {number}", evaluation))
            for number in range(400)
        }
        for evaluation in (False, True)
    }
    assert all(len(pairs) > 30 and {command for _, command in pairs} == {"ls", "pwd"} for pairs in requests.values())
    assert not {text for text, _ in requests[False]} & {text for text, _ in requests[True]}


@pytest.mark.parametrize(
    "module",
    [shell_commands, shell_skills, file_requests, patch_skills, question_skills],
    ids=lambda module: module.__name__,
)
def test_wordings_of_agents_requests_have_no_evaluation_word(module: ModuleType) -> None:
    """These words are not in `FIXED_WORDS`, from which the tokenizer's corpus draws."""
    own_lists = [
        value for name, value in vars(module).items() if isinstance(value, list) and not hasattr(word_sampler, name)
    ]
    wordings = [text for texts in own_lists for text in texts]
    words = {word for text in wordings for word in re.findall("[A-Za-z]{2,}", text)}
    assert len(words) > 10
    assert {word for word in words if word_sampler.is_held_out(word)} <= file_requests.SHARED_WORDS


def test_shell_commands_have_the_punctuation_of_the_shell() -> None:
    for evaluation in (False, True):
        sampler = word_sampler.WordSampler("shell", evaluation)
        commands = [shell_commands.make_shell_command(sampler) for _ in range(600)]
        text = "\n".join(commands)
        for part in ("$((", "))", "$(", "${", " && ", " || ", " | ", "; do ", " > ", "2>&1", "'", '"', "\\n", "--"):
            assert part in text, part
        assert any(command.isalpha() for command in commands), "a program alone"
        assert not re.search("<(w|n|p|l|op|s|path|c|a)>", text), "every mark is filled"


def test_shell_turns_offer_the_tools_of_the_coding_agents() -> None:
    dialogues = [generator.evaluation_dialogue("shell", number) for number in range(NUM_EVALUATION_DIALOGUES)]
    calls = [
        dialogue.messages[-1]["tool_calls"][0]["function"]
        for dialogue in dialogues
        if not dialogue.messages[-1]["content"]
    ]
    assert {"exec_command", "Bash"} < {call["name"] for call in calls}


def find_patches(dialogues: list[Dialogue]) -> Iterator[tuple[str, str]]:
    """Yields the patches in the dialogues, each with its request."""
    for dialogue in dialogues:
        for request, message in pairwise(dialogue.messages):
            for call in message.get("tool_calls") or ():
                if "custom" in call:
                    yield request["content"], call["custom"]["input"]


def test_patches_are_written_as_the_server_shows_them() -> None:
    """A patch has the text of `write_patch`, and its paths and lines are parts of the request."""
    patches = list(find_patches([generator.evaluation_dialogue("apply patch", number) for number in range(200)]))
    kinds = set()
    for request, patch in patches:
        operations: list[CreateFile | UpdateFile | DeleteFile] = []
        for section in re.split(r"^(?=\*\*\* [AUD])", patch, flags=re.MULTILINE)[1:]:
            header, _, diff = section.removesuffix("*** End Patch").partition("\n")
            verb, path = header.removeprefix("*** ").split(" File: ")
            operations.append(DeleteFile(path=path) if verb == "Delete" else KINDS[verb](path=path, diff=diff))
            kinds.add(verb)
            assert path in request
            assert all(line[1:] in request for line in diff.splitlines() if line[0] in "+-")
        assert operations
        assert write_patch(operations) == patch
    assert kinds == {"Add", "Update", "Delete"}
    assert max(patch.count("*** ") for _, patch in patches) == 4, "some patches change two files"


def test_built_in_shell_is_called_with_one_command_or_two() -> None:
    counts = {
        len(json.loads(dialogue.messages[-1]["tool_calls"][0]["function"]["arguments"])["commands"])
        for dialogue in (generator.evaluation_dialogue("built-in shell", number) for number in range(60))
        if dialogue.messages[-1].get("tool_calls")
    }
    assert counts == {1, 2}


def test_files_are_refused_without_the_tool_for_patches() -> None:
    dialogues = [patch_skills.make_file_refusal(word_sampler.WordSampler(number), 1.0) for number in range(300)]
    assert not any(name_of(tool) == "apply_patch" for dialogue in dialogues for tool in dialogue.tools)
