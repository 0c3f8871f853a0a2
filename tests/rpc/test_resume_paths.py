"""Which path resumed a stream: what the router's metric says, and what chaos sums of it."""

from contextlib import aclosing

from quire.sdk.resume import ResumableStream
from tests.chaos.paths import Page, ResumePaths
from tests.rpc.router_setup import running_router
from tests.rpc.test_orphans import REQUEST, read_until_broken, routers_of, until_orphaned


async def test_paths_are_counted_and_summed_over_processes_that_died(tmp_path) -> None:
    pages: list[Page] = []
    paths = ResumePaths(lambda: pages)
    # Attached within the grace time, computed again after it.
    for pid, (grace_time_s, path) in enumerate([(3600.0, "attached"), (0.05, "recomputed")], 1):
        async with (
            running_router(tmp_path, grace_time_s=grace_time_s) as setup,
            aclosing(routers_of(setup)) as routers,
        ):
            address = await setup.router.start_admin(0, "127.0.0.1")
            setup.fake.hold()
            stream = ResumableStream(REQUEST, 1, 60.0)
            await read_until_broken(routers, stream)
            if path == "attached":
                await until_orphaned(setup)
            else:
                await setup.fake.until(lambda fake=setup.fake: fake.cancelled == ["mine"])
            await setup.fake.release()
            for event in await routers.read(0, stream.request):
                stream.take(event)
            assert stream.is_complete
            pages[:] = [Page(pid, address)]
            await paths.read()
            assert f"1 {path}" in paths.lines[0]
    await paths.read()  # nothing answers any more
    assert paths.lines[0] == (
        "resumed, as 2 processes last showed: 1 attached, 0 prefix_cached, 1 recomputed"
    )
