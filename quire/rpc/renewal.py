"""Channels that take a new certificate without dropping what runs over the old one.

grpc ties a channel to the certificate with which it was made. Here a channel is a succession of
them: a call goes to the newest, and an older one is closed once its calls have ended.
"""

import asyncio
import threading
from collections.abc import Callable
from functools import partialmethod
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from quire.rpc.options import CHANNEL_OPTIONS
from quire.security.tls import KeyPair, TlsFiles

# How often the files are looked at, at most, however many calls are made.
CHECK_S = 1.0
# How long to wait for a connection before they are looked at again.
WAIT_S = 1.0

ChannelT = TypeVar("ChannelT")


class _Generation(Generic[ChannelT]):
    """A channel with one certificate.

    Attributes:
        channel: of grpc.
        pair: the certificate.
        num_calls: that have begun and not ended.
    """

    def __init__(self, channel: ChannelT, pair: KeyPair) -> None:
        self.channel = channel
        self.pair = pair
        self.num_calls = 0


class _Generations(Generic[ChannelT]):
    """The newest channel, and the older ones that still have calls.

    Args:
        tls: certificates for new connections.
        make: opens a channel with a certificate.
        close: closes one.
    """

    def __init__(
        self,
        tls: TlsFiles,
        make: Callable[[KeyPair], ChannelT],
        close: Callable[[ChannelT], None],
    ) -> None:
        self._tls = tls
        self._make = make
        self._close = close
        # Reentrant: a dropped call ends wherever the garbage collector finds it, here too.
        self._lock = threading.RLock()
        pair = tls.current(CHECK_S)
        self._newest = _Generation(make(pair), pair)
        self._retired: list[_Generation[ChannelT]] = []

    def newest(self) -> _Generation[ChannelT]:
        """Return the channel for the certificate of now."""
        with self._lock:
            return self._renewed()

    def begin(self) -> _Generation[ChannelT]:
        """Return the channel for a call, which `end` is to follow."""
        with self._lock:
            generation = self._renewed()
            generation.num_calls += 1
            return generation

    def end(self, generation: _Generation[ChannelT]) -> None:
        """A call has ended."""
        with self._lock:
            generation.num_calls -= 1

    def channels(self) -> list[ChannelT]:
        """Return every channel that is open."""
        with self._lock:
            return [each.channel for each in (*self._retired, self._newest)]

    def _renewed(self) -> _Generation[ChannelT]:
        pair = self._tls.current(CHECK_S)
        if pair is not self._newest.pair:
            self._retired.append(self._newest)
            self._newest = _Generation(self._make(pair), pair)
        # Not as soon as the last call has ended: the channel reports that in a thread of its own.
        idle = [each for each in self._retired if not each.num_calls]
        for generation in idle:
            self._retired.remove(generation)
            self._close(generation.channel)
        return self._newest


def _credentials(pair: KeyPair) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pair.roots, pair.key, pair.certificate)


def _options(server_name: str | None) -> list[tuple[str, int | str]]:
    options: list[tuple[str, int | str]] = list(CHANNEL_OPTIONS)
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


class RenewingChannel(grpc.aio.Channel):  # type: ignore[misc]
    """A channel for asyncio whose certificate follows its files.

    Args:
        address: "host:port".
        tls: certificates for new connections.
        server_name: that the server's certificate must have; None for the host of `address`.
        interceptors: of every call.
    """

    def __init__(
        self,
        address: str,
        tls: TlsFiles,
        server_name: str | None,
        interceptors: Any = None,
    ) -> None:
        self._closing: set[asyncio.Task[None]] = set()

        def make(pair: KeyPair) -> grpc.aio.Channel:
            return grpc.aio.secure_channel(
                address, _credentials(pair), _options(server_name), interceptors=interceptors
            )

        self._generations = _Generations(tls, make, self._close_soon)

    def _close_soon(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, grace: float | None = None) -> None:
        """Cancel what runs, and close."""
        closing = [channel.close(grace) for channel in self._generations.channels()]
        await asyncio.gather(*closing, *self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the newest channel."""
        return self._generations.newest().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when the newest channel is no longer in a state."""
        await self._generations.newest().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return when there is a connection, perhaps with a certificate that comes meanwhile."""
        while True:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._generations.newest().channel.channel_ready()
                    return
            except TimeoutError:
                continue

    def _multi_callable(self, kind: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            generation = self._generations.begin()
            try:
                method = getattr(generation.channel, kind)(*args, **kwargs)
                started = method(*call_args, **call_kwargs)
            except BaseException:
                self._generations.end(generation)
                raise
            started.add_done_callback(lambda _: self._generations.end(generation))
            return started

        return call

    unary_unary = partialmethod(_multi_callable, "unary_unary")
    unary_stream = partialmethod(_multi_callable, "unary_stream")
    stream_unary = partialmethod(_multi_callable, "stream_unary")
    stream_stream = partialmethod(_multi_callable, "stream_stream")


class RenewingSyncChannel:
    """What a stub of unary requests needs of a grpc.Channel, with a certificate that follows files.

    Args:
        address: "host:port".
        tls: certificates for new connections.
        server_name: that the server's certificate must have; None for the host of `address`.
    """

    def __init__(self, address: str, tls: TlsFiles, server_name: str | None) -> None:
        def make(pair: KeyPair) -> grpc.Channel:
            return grpc.secure_channel(address, _credentials(pair), _options(server_name))

        self._generations = _Generations(tls, make, lambda channel: channel.close())

    def close(self) -> None:
        """Cancel what runs, and close."""
        for channel in self._generations.channels():
            channel.close()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As grpc.Channel's."""

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            generation = self._generations.begin()
            try:
                made = generation.channel.unary_unary(method, *args, **kwargs)
                return made(*call_args, **call_kwargs)
            finally:
                self._generations.end(generation)

        return call

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """As grpc.Channel's."""

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            generation = self._generations.begin()
            try:
                made = generation.channel.unary_stream(method, *args, **kwargs)
                started = made(*call_args, **call_kwargs)
            except BaseException:
                self._generations.end(generation)
                raise
            if not started.add_callback(lambda: self._generations.end(generation)):
                self._generations.end(generation)  # it has ended already
            return started

        return call
