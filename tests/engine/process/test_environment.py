"""The environments of child processes: one rule, and every place that starts a process uses it."""

import ast
from collections.abc import Iterator

from antiphon.app.sandbox.sandbox_process import KEPT_VARIABLES
from antiphon.app.tools.mcp.stdio_transport import INHERITED_VARIABLES
from antiphon.engine.process.spawn import child_environment, worker_environment
from tests.syntax import list_source_modules, parse_module

SECRETS = {
    "ANTIPHON_API_KEY": "sk-one",
    "ANTIPHON_ENCRYPTION_KEY_FILE": "/key",
    "HF_TOKEN": "hf_x",
    "OPENAI_API_KEY": "sk-two",
    "AWS_SECRET_ACCESS_KEY": "x",
    "PGPASSWORD_FILE_PASSWORD": "x",
    "DB_PASSWD": "x",
    "HTTPS_PROXY": "http://user:pass@proxy:3128",
    "SENTRY_DSN": "https://x@sentry",
}
NEEDED = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TIKTOKEN_ENCODINGS_BASE": "/folder",
    "OMP_NUM_THREADS": "2",
    "XDG_CACHE_HOME": "/cache",
    "HTTP_PROXY": "http://proxy:3128",
    "KEYBOARD": "us",
}


def test_worker_gets_the_environment_without_secrets() -> None:
    environment = worker_environment(SECRETS | NEEDED)
    assert not environment.keys() & SECRETS.keys()
    assert NEEDED.items() <= environment.items()


def test_parent_overrides_the_default_environment() -> None:
    assert worker_environment({})["THP_MEM_ALLOC_ENABLE"] == "1"
    assert worker_environment({"THP_MEM_ALLOC_ENABLE": "0"})["THP_MEM_ALLOC_ENABLE"] == "0"


def test_waiting_threads_of_the_worker_spin_for_a_bounded_time() -> None:
    assert 0 < int(worker_environment({})["GOMP_SPINCOUNT"]) <= 20_000
    assert worker_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in worker_environment({"OMP_WAIT_POLICY": "ACTIVE"})


def test_no_child_gets_what_may_be_a_secret() -> None:
    parent = SECRETS | NEEDED
    assert child_environment(parent) == NEEDED
    for names in (INHERITED_VARIABLES, KEPT_VARIABLES, [*SECRETS, "PATH"]):
        assert child_environment(parent, only=names) == {"PATH": "/bin"}


def test_a_program_of_the_operator_keeps_all_but_the_servers_own_variables() -> None:
    own = {name for name in SECRETS if name.startswith("ANTIPHON_")}
    kept = child_environment(SECRETS | NEEDED, keep_credentials=True)
    assert kept.keys() == (SECRETS | NEEDED).keys() - own and own


STARTS = {"Popen", "run", "check_output", "create_subprocess_exec", "create_subprocess_shell"}
RULES = {"child_environment", "worker_environment"}
OTHER_ENVIRONMENTS = {
    "engine/kernels/compiler.py": "the compiler that the operator's environment names and configures",
    "engine/process/resident_memory.py": "`ps`, which needs PATH alone and sends nothing",
    "engine/checkpoint/gguf/folder.py": "a module of this project, which reads one file and opens no connection",
}
"""Modules whose processes get another environment, each with its reason. Kit and console are no part of a server."""


def find_process_starts() -> Iterator[tuple[str, bool]]:
    """Yields the module of each start of a process in the server, and whether its environment is by the rule."""
    for module in list_source_modules():
        if module.parts[0] in ("kit", "console"):
            continue
        for node in ast.walk(parse_module(module)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = ast.unparse(node.func.value)
            if node.func.attr in STARTS and owner in ("subprocess", "asyncio"):
                environment = next((each.value for each in node.keywords if each.arg == "env"), None)
                names = (
                    {each.id for each in ast.walk(environment) if isinstance(each, ast.Name)} if environment else set()
                )
                yield str(module), bool(names & RULES)


def test_every_process_gets_its_environment_by_the_rule() -> None:
    starts = set(find_process_starts())
    assert {module for module, by_rule in starts if not by_rule} == OTHER_ENVIRONMENTS.keys()
    assert {module for module, by_rule in starts if by_rule} >= {
        "engine/process/spawn.py",
        "app/tools/mcp/stdio_transport.py",
    }
