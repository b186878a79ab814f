"""Checks client-given grammars in a separate process, which is started again when a grammar has killed it."""

import asyncio
import atexit
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from select import select

import msgspec

from antiphon.app.sandbox.messages import LENGTH, CheckRequest, GrammarKind
from antiphon.engine.process.spawn import worker_environment

MAX_GRAMMAR_CHARS = 400_000
"""Characters of one schema or grammar. The largest tool schemas in use have tens of thousands."""
MAX_GRAMMAR_RULES = 1_000
"""Rules of one Lark grammar. A chain of rules costs stack for each rule; grammars of whole programming languages have a
few hundred."""
MAX_SCHEMA_REFERENCES = 5_000
"""`$ref` keywords of one schema."""
REPLY_TIMEOUT_S = 30.0
"""Elapsed time after which a worker that does not reply is killed. It bounds a worker that waits instead of computing;
one that computes is ended by its limit of CPU time."""
MAX_CACHED_CHECKS = 512
TOO_COMPLEX = "it is too complex: checking it exceeded the limits of time or memory"

_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_][^\n\"/:]*:", re.MULTILINE)


class GrammarChecker:
    """Checks grammars one at a time. Results are cached, since agents send the same tools with every turn.

    The checks wait in a queue of their own, so that a slow one delays no rendering and no reply without a grammar.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "grammar-check")
        self._worker: subprocess.Popen[bytes] | None = None
        self._faults: OrderedDict[CheckRequest, str] = OrderedDict()
        self._lock = threading.Lock()

    async def find_fault(self, kind: GrammarKind, source: str) -> str:
        """Returns the reason why a grammar cannot be used; empty if it can."""
        if fault := _exceeded_bound(kind, source):
            return fault
        request = CheckRequest(kind, source)
        with self._lock:
            cached = self._faults.get(request)
            if cached is not None:
                self._faults.move_to_end(request)
                return cached
        fault = await asyncio.get_running_loop().run_in_executor(self._executor, self._check, request)
        with self._lock:
            self._faults[request] = fault
            if len(self._faults) > MAX_CACHED_CHECKS:
                self._faults.popitem(last=False)
        return fault

    def stop_worker(self) -> None:
        """Kills the process. The next check starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.communicate()

    def _check(self, request: CheckRequest) -> str:
        """Sends one grammar to the worker. Without a reply, the grammar has killed it."""
        body = msgspec.msgpack.encode(request)
        for _ in range(2):
            is_new = self._worker is None
            worker = self._worker = self._worker or _start_worker()
            reply = _exchange(worker, LENGTH.pack(len(body)) + body)
            if reply is not None:
                return reply
            self.stop_worker()
            if is_new:
                break
            # A worker that ran before may have been killed for another reason: the memory of the machine ran out.
        return TOO_COMPLEX


def _start_worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "antiphon.app.sandbox.grammar_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=worker_environment(os.environ),
        start_new_session=True,
    )


def _exchange(worker: "subprocess.Popen[bytes]", message: bytes) -> str | None:
    """Returns the reply to a message, or None if the worker has died or does not reply."""
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(message)
        worker.stdin.flush()
        if not select([worker.stdout], [], [], REPLY_TIMEOUT_S)[0]:
            return None
        head = worker.stdout.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        length = LENGTH.unpack(head)[0]
        body = worker.stdout.read(length)
    except OSError:
        return None
    return body.decode("utf-8") if len(body) == length else None


def _exceeded_bound(kind: GrammarKind, source: str) -> str:
    """Returns the bound that a grammar exceeds; empty if none. These bounds cost nothing and name what to reduce."""
    if len(source) > MAX_GRAMMAR_CHARS:
        return f"it has {len(source)} characters; at most {MAX_GRAMMAR_CHARS} are supported"
    if kind == "lark" and (count := len(_RULE.findall(source))) > MAX_GRAMMAR_RULES:
        return f"it has {count} rules; at most {MAX_GRAMMAR_RULES} are supported"
    if kind == "schema" and (count := source.count('"$ref"')) > MAX_SCHEMA_REFERENCES:
        return f"it has {count} references; at most {MAX_SCHEMA_REFERENCES} are supported"
    return ""


GRAMMAR_CHECKER = GrammarChecker()
"""The checker of this process. A check depends on the grammar alone, so all servers of a process share one."""
atexit.register(GRAMMAR_CHECKER.stop_worker)
