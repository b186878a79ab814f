"""Pages name what exists: files, anchors, modules, classes, commands and their options, targets of make; and pages of the code are short."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from antiphon.app.cli import commands as cli
from tests import package_pages
from tests.syntax import PACKAGES, ROOT, list_source_modules

PACKAGE_PAGES = [page for package in PACKAGES for page in (ROOT / package).rglob("README.md")]
DOC_PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("samples/*/README.md"),
        *PACKAGE_PAGES,
        *(ROOT / f"{folder}/README.md" for folder in ("tests", "training")),
    ]
)
MAX_PAGE_BYTES = {"ARCHITECTURE.md": 9 * 1024}
MAX_PACKAGE_PAGE_BYTES = 5 * 1024


FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND_END = re.compile(r"  #| \| |&&|;|<<| > ")
OPTIONS_OF_OTHERS = {
    "docker build": {"--target"},
    "podman run": {"--health-cmd"},
    "Prometheus": {"--enable-feature"},
    "vLLM": {
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
        "--limit-mm-per-prompt",
        "--max-logprobs",
        "--scheduling-policy",
        "--structured-outputs-config",
        "--tokens-only",
    },
    "vLLM's router": {"--routing-logic"},
    "SGLang": {
        "--enable-cache-report",
        "--enable-deterministic-inference",
        "--enable-priority-scheduling",
        "--grammar-backend",
    },
    "llama.cpp": {"--mmproj", "--spec-synth-rates"},
    "transformers serve": {"--continuous-batching"},
    "pytest": {"--durations"},
}
"""Options on pages that belong to other programs."""


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_named_on_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "|".join([*PACKAGES, "bench", "deploy", "docs", "samples", "snapshots", "tests", "training"])
    root = page.parent if page.is_relative_to(ROOT / "samples") else ROOT
    for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (root / path).exists(), f"{page.name} names {path}"
    packages = f"antiphon.(?:{'|'.join(PACKAGES)})"  # antiphon.request_id is an attribute of spans
    modules = re.findall(rf"`(?:python -m )?((?:{packages}|tests)\.[a-z_.]+)`", text)
    for path in (ROOT / module.removeprefix("antiphon.").replace(".", "/") for module in modules):
        assert path.exists() or path.with_suffix(".py").exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_a_page(package: str) -> None:
    assert (ROOT / package / "README.md").exists(), "write one, with the two marks of tests/package_pages.py"


@pytest.mark.parametrize("page", package_pages.list_pages(), ids=lambda page: page.parent.name)
def test_pages_of_packages_list_their_rooms(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == package_pages.render_page(page), "run: python -m tests.package_pages"


@pytest.mark.parametrize(
    "page", [ROOT / "ARCHITECTURE.md", *PACKAGE_PAGES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_pages_of_the_code_can_be_read_at_once(page: Path) -> None:
    assert len(page.read_bytes()) <= MAX_PAGE_BYTES.get(page.name, MAX_PACKAGE_PAGE_BYTES)


def test_every_task_names_its_first_file() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", (ROOT / "docs/tasks.md").read_text(encoding="utf-8"), re.MULTILINE)
    rows = [row for row in rows if row[0] != "task"]
    tasks = [task for task, _ in rows]
    assert len(tasks) > 60 and len(tasks) == len(set(tasks))
    unclear = [
        path
        for _, files in rows
        for path in re.findall(r"`([\w./-]+[./][\w./-]*)`", files)
        if not (ROOT / path).exists()
    ]
    assert not unclear, "give the whole path"


def test_names_on_the_pages_of_the_code_exist() -> None:
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "docs/tasks.md", *PACKAGE_PAGES]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    source = "\n".join((ROOT / module).read_text(encoding="utf-8") for module in list_source_modules())
    for name in re.findall(r"`([A-Z]\w+[a-z](?:\.\w+)?)`", text):
        class_name, _, member = name.partition(".")
        assert re.search(rf"^\s*(class {class_name}\b|{class_name} = )", source, re.MULTILINE), f"no class {class_name}"
        assert not member or re.search(rf"(def {member}\b|^    {member}:)", source, re.MULTILINE), f"no member {name}"


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not _leads_somewhere(page, link)] == []


def _leads_somewhere(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in _list_anchors(target))


def _list_anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def list_code(page: Path) -> list[str]:
    """Returns the lines of a page's blocks, continued ones joined, and its pieces of code within sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = [re.sub(r"\\\n\s*", " ", block).splitlines() for block in FENCE.findall(text)]
    return [line for block in blocks for line in block] + re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_antiphon_exist_with_their_options(page: Path) -> None:
    lines = re.findall(r"(?:^|[\s/])antiphon ([a-z-].*)", "\n".join(list_code(page)), re.MULTILINE)
    assert [line for line in lines if not _is_command(COMMAND_END.split(line)[0].split())] == []


def _is_command(words: list[str]) -> bool:
    command: click.Command = cli.main
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    options = {word.strip("[]'\"(),").partition("=")[0] for word in words if word.strip("['\"(").startswith("--")}
    is_named = command is not cli.main or bool(options)
    return is_named and options <= _list_options(command)


def _list_options(command: click.Command) -> set[str]:
    # click keeps the help option of the first context, which has to be that of the command line.
    context = click.Context(command, **cli.main.context_settings)
    return {name for parameter in command.get_params(context) for name in _list_names(parameter)}


def _list_names(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def _walk(command: click.Command) -> Iterator[click.Command]:
    yield command
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _walk(each)


def test_options_named_in_sentences_exist() -> None:
    known = {name for command in _walk(cli.main) for name in _list_options(command)}
    known |= {name for names in OPTIONS_OF_OTHERS.values() for name in names}
    folders = ("bench", "kit/pytest_plugin", "tests")
    sources = "".join(path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    known |= set(re.findall(r"\"(--[a-z][a-z-]+)\"", sources))
    unknown = {
        f"{page.name}: {found[0]}"
        for page in DOC_PAGES
        for code in list_code(page)
        if (found := re.match(r"--[a-z][a-z-]+", code)) and found[0] not in known
    }
    assert not unknown


def test_make_targets_on_pages_exist() -> None:
    code = "\n".join(line for page in DOC_PAGES for line in list_code(page))
    named = {
        target
        for words in re.findall(r"(?:^|\s)make ((?:[a-z][a-z-]*\b ?)+)", code, re.MULTILINE)
        for target in words.split()
    }
    assert named <= set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_modules_run_on_pages_exist() -> None:
    code = "\n".join(line for page in DOC_PAGES for line in list_code(page))
    modules = set(re.findall(r"python3? -m ((?:bench|tests|training)\.[\w.]+)", code))
    assert modules
    paths = {module: ROOT / module.replace(".", "/") for module in modules}
    assert [name for name, path in paths.items() if not (path.is_dir() or path.with_suffix(".py").exists())] == []
