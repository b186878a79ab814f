"""The wait of a turn for its engine, for a turn that another process began."""

import asyncio

import structlog

from antiphon.engine.protocol import Engine, EngineError

_logger = structlog.get_logger(__name__)

ENGINE_RETRY_DELAY_S = 1.0
"""Pause between two attempts to give an engine a job."""


async def wait_for_engine(engine: Engine, response_id: str) -> None:
    """Waits until the engine can take a job, however long it takes to load. There is no client to tell an error."""
    while True:
        try:
            await engine.wait_ready()
        except EngineError as error:
            _logger.info("a response waits for its engine", response=response_id, reason=error.message)
            await asyncio.sleep(ENGINE_RETRY_DELAY_S)
        else:
            return
