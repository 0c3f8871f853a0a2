"""When a client takes a router for lost that has a connection and sends nothing."""

from typing import Any

import grpc
import pytest

from quire.contract.outputs import Delta
from quire.sdk.silence import LIMIT_S, RouterWatch, WatchedStream
from quire.wire.inference import event_to_proto, heartbeat_to_proto

HEARTBEAT, TOKEN = heartbeat_to_proto(), event_to_proto(Delta("a", (5,)))
# As the ticks of a process that is not stopped.
TICK_S = 0.1


class Call:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Stream(WatchedStream):
    def __init__(self, watch: RouterWatch) -> None:
        super().__init__(Call(), watch)
        self.num_starts = 0

    def start_ticks(self) -> None:
        self.num_starts += 1

    @property
    def is_lost(self) -> bool:
        return bool(self._call.is_cancelled)


class Setup:
    """A watch, two streams of its router, and the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.watch = RouterWatch(lambda: self.now)
        self.streams = Stream(self.watch), Stream(self.watch)

    def tick(self, seconds: float, step_s: float = TICK_S) -> bool:
        goes_on = True
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            goes_on = self.watch.tick()
        return goes_on


def test_where_there_is_no_other_router_a_silent_one_is_waited_for() -> None:
    stream = Stream(RouterWatch(has_others=False))
    stream._watch.waits(stream)
    stream._watch.got(stream, HEARTBEAT)
    stream._watch.waits(stream)
    assert stream.num_starts == 0, "nothing counts"


def waiting(response: Any = HEARTBEAT) -> Setup:
    """Both streams wait, after one has got something."""
    setup = Setup()
    setup.watch.waits(setup.streams[0])
    setup.watch.got(setup.streams[0], response)
    for stream in setup.streams:
        setup.watch.waits(stream)
    setup.watch.tick()
    return setup


def test_all_streams_of_a_silent_router_are_given_up() -> None:
    setup = waiting()
    assert setup.tick(LIMIT_S - 4 * TICK_S)
    assert not any(stream.is_lost for stream in setup.streams)
    setup.tick(5 * TICK_S)
    assert all(stream.is_lost for stream in setup.streams)


@pytest.mark.parametrize("response", [HEARTBEAT, TOKEN])
def test_whatever_comes_shows_for_all_that_the_router_is_alive(response: Any) -> None:
    setup = waiting()
    for _ in range(5):
        setup.tick(LIMIT_S - 4 * TICK_S)
        setup.watch.got(setup.streams[1], response)
        setup.watch.waits(setup.streams[1])
    assert not setup.streams[0].is_lost


def test_routers_that_send_no_heartbeats_may_be_silent() -> None:
    setup = waiting(TOKEN)
    setup.tick(100 * LIMIT_S)
    assert not any(stream.is_lost for stream in setup.streams)


def test_after_a_lost_connection_heartbeats_must_come_first() -> None:
    class Unavailable(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

    setup = waiting()
    setup.watch.failed(setup.streams[0], Unavailable())
    setup.tick(100 * LIMIT_S)
    assert not setup.streams[1].is_lost


def test_time_in_which_the_client_did_not_run_does_not_count() -> None:
    setup = waiting()
    setup.tick(3600.0, step_s=1200.0)
    assert not any(stream.is_lost for stream in setup.streams)


def test_a_reader_that_takes_its_time_loses_nothing() -> None:
    setup = waiting()
    reader, other = setup.streams
    setup.watch.failed(other)
    setup.watch.got(reader, TOKEN)
    assert not setup.tick(TICK_S), "there is nothing to count"
    setup.now += 100 * LIMIT_S
    setup.watch.waits(reader)
    assert reader.num_starts == 2
    setup.tick(LIMIT_S - 4 * TICK_S)
    assert not reader.is_lost
