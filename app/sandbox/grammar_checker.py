"""Checks client-given grammars in a separate process."""

import asyncio
import atexit
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec

from antiphon.app.sandbox.messages import PROBE_BYTES, CheckRequest, GrammarKind, MemoryProbe
from antiphon.app.sandbox.sandbox_process import SandboxError, SandboxProcess
from antiphon.app.sandbox.schema_integers import find_large_bound, find_large_value

MAX_CHECKED_GRAMMAR_CHARS = 400_000
"""Characters of one schema or grammar. The largest tool schemas in use have tens of thousands."""
MAX_GRAMMAR_RULES = 1_000
"""Rules of one Lark grammar. A chain of rules costs stack for each rule; grammars of whole programming languages have a
few hundred."""
MAX_SCHEMA_REFERENCES = 5_000
"""`$ref` keywords of one schema."""
MAX_CACHED_CHECKS = 512
TOO_COMPLEX = "it is too complex: checking it exceeded the limits of time or memory"
WORKER_MODULE = "antiphon.app.sandbox.grammar_worker"

_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_][^\n\"/:]*:", re.MULTILINE)


class GrammarChecker:
    """Checks grammars one at a time. Results are cached, since agents send the same tools with every turn.

    The checks wait in a queue of their own, so that a slow one delays no rendering and no reply without a grammar.
    """

    def __init__(self, module: str = WORKER_MODULE) -> None:
        self._executor = ThreadPoolExecutor(1, "grammar-check")
        self.process = SandboxProcess(module)
        self._faults: OrderedDict[CheckRequest, str] = OrderedDict()
        self._lock = threading.Lock()

    async def find_fault(self, kind: GrammarKind, source: str) -> str:
        """Returns the reason why a grammar cannot be used; empty if it can. Raises `SandboxError`."""
        if fault := _exceeded_bound(kind, source):
            return fault
        request = CheckRequest(kind, source)
        with self._lock:
            cached = self._faults.get(request)
            if cached is not None:
                self._faults.move_to_end(request)
                return cached
        fault = await asyncio.get_running_loop().run_in_executor(self._executor, self._ask_worker, request)
        if fault and kind == "schema":
            fault = find_large_bound(source) or fault
        with self._lock:
            self._faults[request] = fault
            if len(self._faults) > MAX_CACHED_CHECKS:
                self._faults.popitem(last=False)
        return fault

    def _ask_worker(self, request: CheckRequest) -> str:
        reply = self.process.exchange(msgspec.msgpack.encode(request))
        return TOO_COMPLEX if reply is None else reply.header.decode("utf-8")

    def _survives_probe(self) -> bool:
        probe = msgspec.msgpack.encode(MemoryProbe())
        return self.process.exchange(probe, watched_bytes=PROBE_BYTES // 2) is not None

    def prove(self) -> None:
        """Checks that the process works: one good grammar passes, one that needs too much memory is ended.

        If the limit has no effect on this system, the server watches the memory from then on. Blocks. Raises
        `SandboxError`.
        """
        if self._survives_probe():
            self.process.watch_memory()
            if self._survives_probe():
                raise SandboxError("grammar_worker can take more memory than its limit, and nothing ends it")
        if fault := self._ask_worker(CheckRequest("lark", 'start: "a"')):
            raise SandboxError(f"grammar_worker refuses a valid grammar: {fault}")


def _exceeded_bound(kind: GrammarKind, source: str) -> str:
    """Returns the bound that a grammar exceeds; empty if none. These bounds cost nothing and name what to reduce."""
    if len(source) > MAX_CHECKED_GRAMMAR_CHARS:
        return f"it has {len(source)} characters; at most {MAX_CHECKED_GRAMMAR_CHARS} are supported"
    if kind == "lark" and (count := len(_RULE.findall(source))) > MAX_GRAMMAR_RULES:
        return f"it has {count} rules; at most {MAX_GRAMMAR_RULES} are supported"
    if kind == "schema" and (count := source.count('"$ref"')) > MAX_SCHEMA_REFERENCES:
        return f"it has {count} references; at most {MAX_SCHEMA_REFERENCES} are supported"
    return find_large_value(source) if kind == "schema" else ""


GRAMMAR_CHECKER = GrammarChecker()
"""The checker of this process. A check depends on the grammar alone, so all servers of a process share one."""
atexit.register(GRAMMAR_CHECKER.process.close)
