"""To and from the messages that size, order and describe a worker's cache."""

from quire.contract.engine_options import CacheOptions
from quire.contract.options import values_of
from quire.contract.workers import CacheProfile, CacheSpec, HostCache
from quire.v1 import worker_pb2
from quire.wire.fields import fields_of, from_fields


def profile_to_proto(
    epoch: int, options: CacheOptions, num_at_host: int
) -> worker_pb2.ProfileCacheRequest:
    """Return the message that asks how much cache fits beside the largest step."""
    return worker_pb2.ProfileCacheRequest(
        epoch=epoch, options=cache_options_to_proto(options), num_at_host=num_at_host
    )


def profile_from_proto(message: worker_pb2.ProfileCacheRequest) -> CacheOptions:
    """Return what a message asks for.

    Raises:
        ConfigError: an option is out of bounds.
    """
    return from_fields(CacheOptions, message.options)


def cache_options_to_proto(options: CacheOptions) -> worker_pb2.CacheOptions:
    """Return the message of how large steps and cache are."""
    return worker_pb2.CacheOptions(**values_of(options, CacheOptions))


def cache_profile_to_proto(profile: CacheProfile) -> worker_pb2.ProfileCacheResponse:
    """Return the message of a profile."""
    return worker_pb2.ProfileCacheResponse(**fields_of(profile))


def cache_profile_from_proto(message: worker_pb2.ProfileCacheResponse) -> CacheProfile:
    """Return the profile of a message."""
    return from_fields(CacheProfile, message)


def cache_spec_to_proto(epoch: int, spec: CacheSpec) -> worker_pb2.InitCacheRequest:
    """Return the message that orders a cache."""
    return worker_pb2.InitCacheRequest(
        epoch=epoch,
        num_blocks=spec.num_blocks,
        options=cache_options_to_proto(spec.options),
        keeps_contents=spec.keeps_contents,
    )


def cache_spec_from_proto(message: worker_pb2.InitCacheRequest) -> CacheSpec:
    """Return the cache that a message orders.

    Raises:
        ConfigError: an option is out of bounds.
    """
    return from_fields(CacheSpec, message, options=from_fields(CacheOptions, message.options))


def host_cache_to_proto(cache: HostCache) -> worker_pb2.InitCacheResponse:
    """Return the message of where swapped blocks go."""
    return worker_pb2.InitCacheResponse(
        num_host_blocks=cache.num_blocks,
        swap_block_us=cache.block_us,
        cache_bytes=cache.cache_bytes,
    )


def host_cache_from_proto(message: worker_pb2.InitCacheResponse) -> HostCache:
    """Return where swapped blocks go."""
    return HostCache(message.num_host_blocks, message.swap_block_us, message.cache_bytes)
