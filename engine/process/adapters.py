"""The adapters of a worker process, as its parent sees them: requests in flight, and what the next worker loads."""

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from antiphon.engine.options import EngineOptions, LoraModule
from antiphon.engine.process.messages import AdapterReport, Command, LoadAdapter, UnloadAdapter
from antiphon.engine.protocol import EngineError, Fault


class WorkerAdapters:
    """Loads and unloads adapters in the worker. `send` sends a command, or raises `EngineError`."""

    def __init__(self, options: EngineOptions, send: Callable[[Command], None]) -> None:
        self._options, self._send = options, send
        self._modules = {module.name: module for module in options.lora_modules}
        self._numbers = count(1)
        self._requests: dict[int, asyncio.Future[None]] = {}

    @property
    def start_options(self) -> EngineOptions:
        """Options of the next worker, with the adapters that are loaded now."""
        return msgspec.structs.replace(self._options, lora_modules=tuple(self._modules.values()))

    async def load(self, name: str, path: str, root: str = "") -> None:
        """Loads an adapter, in place of one with the same name. Raises `EngineError`.

        `root`: the folder that its files must be in, empty for any.
        """
        await self._request(LoadAdapter(next(self._numbers), name, path, root))
        self._modules[name] = LoraModule(name, path, root, required=False)

    async def unload(self, name: str) -> None:
        """Unloads an adapter; jobs that have it keep it. Raises `EngineError`."""
        await self._request(UnloadAdapter(next(self._numbers), name))
        self._modules.pop(name, None)

    def on_ready(self) -> None:
        """Handles the end of loading. No adapter is required any more: a restart must serve the others."""
        for name, module in self._modules.items():
            self._modules[name] = msgspec.structs.replace(module, required=False)

    def on_report(self, report: AdapterReport) -> None:
        """Handles the result of a request."""
        future = self._requests.pop(report.request, None)
        if future is None or future.done():
            return
        if report.code:
            future.set_exception(EngineError(report.code, report.message))
        else:
            future.set_result(None)

    def fail_requests(self, fault: Fault) -> None:
        """Ends the requests in flight, because the worker has exited."""
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(EngineError.from_fault(fault))

    async def _request(self, command: LoadAdapter | UnloadAdapter) -> None:
        future = self._requests[command.request] = asyncio.get_running_loop().create_future()
        try:
            self._send(command)
            await future
        finally:
            self._requests.pop(command.request, None)
