"""Requests whose turns are being prepared: a refusal ends each of them, however far it is."""

import asyncio

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.options.api_keys import ApiKey, key_digest
from antiphon.app.turns.turn_groups import Preparations

KEY = ApiKey(digest=key_digest("sk-one"), owner="ann")
REFUSAL = ApiError(401, "invalid_api_key", "no")


@pytest.mark.parametrize("has_last_result", [False, True])
async def test_key_that_is_revoked_in_the_last_moment(*, has_last_result: bool) -> None:
    """The preparation has what it waited for, and continues with its turns in the same cycle of the event loop."""
    preparations, result = Preparations(), asyncio.get_running_loop().create_future()

    async def prepare() -> None:
        async with preparations.count(KEY):
            await result

    preparing = asyncio.create_task(prepare())
    await asyncio.sleep(0)
    if has_last_result:
        result.set_result(None)
    assert preparations.refuse_keys({KEY.digest}, REFUSAL) == 1
    with pytest.raises(ApiError) as refused:
        await preparing
    assert refused.value is REFUSAL
    assert preparations.refuse_keys({KEY.digest}, REFUSAL) == 0
