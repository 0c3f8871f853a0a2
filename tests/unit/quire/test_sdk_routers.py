"""Of several routers a client begins with any."""

import pytest

from quire import Client

ROUTERS = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


def first_router(monkeypatch: pytest.MonkeyPatch, place: int) -> object:
    monkeypatch.setattr("random.randrange", lambda stop: place % stop)
    with Client(ROUTERS) as client:
        return client._stub_of_each.index(client._stub)


def test_clients_with_one_list_share_its_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [first_router(monkeypatch, place) for place in range(4)] == [0, 1, 2, 0]
