"""Pages of the items of a conversation: read by themselves from the database, and of limited size."""

import random

import httpx
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store import conversation_tables
from antiphon.app.store.base import StoredConversation
from antiphon.app.turns import stored_history
from antiphon.app.turns.stored_history import StoredHistory
from tests.app.store.store_helpers import StorePlace, make_items
from tests.conftest import StartServer

NUM_ITEMS = 25
CONVERSATION = StoredConversation(id="conv_1", created_at=1, metadata={})


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Items that are decoded."""
    found: list[str] = []
    decode = conversation_tables._decode_item

    def decode_counted(conversation_id: str, data: bytes) -> object:
        item = decode(conversation_id, data)
        found.append("" if item is None else item.id or "")
        return item

    monkeypatch.setattr(conversation_tables, "_decode_item", decode_counted)
    return found


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_follow_each_other(place: StorePlace, loaded: list[str], descending: bool) -> None:
    dice = random.Random(1)
    items = make_items(range(NUM_ITEMS))
    async with place.open() as store:
        for name in ("conv_0", "conv_1", "conv_2"):
            await store.create_conversation("me", StoredConversation(id=name, created_at=1, metadata={}))
        for number, item in enumerate(items):
            await store.add_items("me", "conv_1", [item])
            await store.add_items("me", f"conv_{number % 2 * 2}", make_items([100 + number]))
        expected = [item.id for item in (items[::-1] if descending else items)]
        for _ in range(20):
            limit, after, seen = dice.randrange(1, 11), None, list[str | None]()
            while True:
                loaded.clear()
                page = store.history.load_page("me", "conv_1", after, limit, descending=descending)
                assert page is not None and len(loaded) == len(page.items) <= limit
                seen += [item.id for item in page.items]
                assert page.has_more == (len(seen) < NUM_ITEMS)
                if not page.has_more:
                    break
                assert len(page.items) == limit
                after = seen[-1]
            assert seen == expected
        assert store.history.load_page("me", "conv_1", "msg_100", 5, descending=descending) is None
        assert store.history.load_page("you", "conv_1", None, 5, descending=descending) == ((), False)


async def test_page_ends_where_it_would_be_too_large(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.open() as store:
        await store.create_conversation("me", CONVERSATION)
        await store.add_items("me", "conv_1", make_items(range(5), length=1000))
        for limit, expected in ((2500, 2), (100, 1)):
            monkeypatch.setattr(conversation_tables, "MAX_PAGE_BYTES", limit)
            page = store.history.load_page("me", "conv_1", None, 5, descending=False)
            assert page is not None and (len(page.items), page.has_more) == (expected, True)


@pytest.mark.parametrize(("name", "limit"), [("MAX_CHAIN_ITEMS", 4), ("MAX_CHAIN_BYTES", 5 * 1000)])
async def test_turn_loads_no_conversation_that_is_too_large(
    place: StorePlace, loaded: list[str], monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(stored_history, name, limit)
    async with place.open() as store:
        await store.create_conversation("me", CONVERSATION)
        history = StoredHistory(store, "me", None)  # type: ignore[arg-type]  # nothing is sealed
        await store.add_items("me", "conv_1", make_items(range(4), length=1000))
        assert len(history.items_before_input(None, "conv_1")) == 4
        await store.add_items("me", "conv_1", make_items([4], length=1000))
        loaded.clear()
        with pytest.raises(ApiError) as caught:
            history.items_before_input(None, "conv_1")
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded") and not loaded


def test_item_is_read_alone(start_server: StartServer, loaded: list[str]) -> None:
    server = start_server([{"name": "any", "output": ["Hi"]}], file_store=True)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        first, second = (client.post("/conversations", json={}).json()["id"] for _ in range(2))
        items = [{"role": "user", "content": "Hi", "type": "message"} for _ in range(NUM_ITEMS)]
        added = client.post(f"/conversations/{first}/items", json={"items": items[:20]}).json()["data"]
        loaded.clear()
        assert client.get(f"/conversations/{first}/items", params={"limit": 1}).json()["data"] == added[-1:]
        assert client.get(f"/conversations/{first}/items/{added[3]['id']}").json() == added[3]
        assert len(loaded) == 1
        assert client.get(f"/conversations/{second}/items/{added[3]['id']}").status_code == 404
        refused = client.get(f"/conversations/{second}/items", params={"after": added[3]["id"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")
