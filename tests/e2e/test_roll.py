"""Every process of `quire serve` is replaced under load: no error, and the same tokens."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from launch.cluster.config import embedded_model
from launch.cluster.keeper import Patience
from launch.cluster.servicer import Control
from launch.cluster.supervisor import Cluster
from quire import AsyncClient
from quire.contract.errors import ConfigError, UnavailableError
from quire.contract.outputs import Completion
from tests.e2e.conftest import cluster_config
from tests.e2e.test_recovery import NUM_STREAMING, PROMPTS, collect, collect_all

QUIRE = str(Path(sys.executable).parent / "quire")


async def begin_all(client: AsyncClient) -> "list[asyncio.Task[list[Completion]]]":
    """Return every stream once those that send tokens before their end have sent some."""
    arrived = [asyncio.Event() for _ in PROMPTS]
    streams = [asyncio.create_task(collect(client, i, event)) for i, event in enumerate(arrived)]
    await asyncio.gather(*(event.wait() for event in arrived[:NUM_STREAMING]))
    return streams


async def test_every_process_is_replaced_and_no_token_changes() -> None:
    cluster = Cluster(cluster_config(), patience=Patience(steady_s=1e6))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect_all(client)
            worker = cluster.services[0]
            await worker.prepare()
            stale = worker.spare_pid
            old = [each.pid for each in cluster.services]
            streams = await begin_all(client)
            lines: list[str] = []
            await cluster.roll(lines.append)
            assert await asyncio.gather(*streams) == expected
            new = [each.pid for each in cluster.services]
            assert not {*old, stale} & {*new}, "the one that was held ready had the old code"
            names = ("worker 0", "scheduler", "router")
            for line, name, before, after in zip(lines, names, old, new, strict=False):
                assert line.startswith(f"{name}: pid {before} -> {after}, ")
            assert lines[3].startswith("3 processes replaced in ")
            assert await collect_all(client) == expected
    finally:
        await cluster.stop()


async def test_what_only_the_old_weights_can_finish_is_finished_first(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(embedded_model(), model)
    cluster = Cluster(cluster_config(model), patience=Patience(steady_s=1e6))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect_all(client)
            old = [each.pid for each in cluster.services]
            streams = await begin_all(client)
            weights = model / "model.safetensors"
            changed = {name: each * 1.25 for name, each in load_file(weights).items()}
            save_file(changed, tmp_path / "new")
            (tmp_path / "new").rename(weights)
            lines: list[str] = []
            rolling = asyncio.create_task(cluster.roll(lines.append))
            # What comes meanwhile waits for the new weights.
            while not any("are being finished" in line for line in lines):
                await asyncio.sleep(0.01)
            new_one = await collect(client, 1)
            assert await asyncio.gather(*streams) == expected
            await rolling
            assert not {*old} & {each.pid for each in cluster.services}
            assert lines[0].startswith("the new code computes other tokens (numerics id ")
            assert any("requests finished by the old code in" in line for line in lines)
            assert not any("were not" in line for line in lines)
            assert new_one == await collect(client, 1)
            assert new_one != expected[1]
    finally:
        await cluster.stop()


async def test_code_that_cannot_serve_the_model_stops_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(embedded_model(), model)
    cluster = Cluster(cluster_config(model), patience=Patience(steady_s=1e6))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect(client, 1)
            old = [each.pid for each in cluster.services]
            (model / "config.json").write_text('{"architectures": ["None"]}')
            with pytest.raises(UnavailableError, match=r"^roll: nothing was replaced: "):
                await cluster.roll(lambda _: None)
            assert [each.pid for each in cluster.services] == old
            assert await collect(client, 1) == expected
    finally:
        await cluster.stop()


async def test_code_that_does_not_start_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(cluster_config(), patience=Patience(steady_s=1e6))
    await cluster.start()
    try:
        async with AsyncClient(cluster.router.address) as client:
            expected = await collect(client, 1)
            old = [each.pid for each in cluster.services]
            broken = tmp_path / "python"
            broken.write_text("#!/bin/sh\nexit 3\n")
            broken.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(broken))
            with pytest.raises(UnavailableError, match=r"^roll: the successor of .* must come up"):
                await cluster.roll(lambda _: None)
            assert [each.pid for each in cluster.services] == old
            assert await collect(client, 1) == expected
    finally:
        await cluster.stop()


async def test_the_command_shows_what_is_replaced_and_one_order_goes_at_a_time() -> None:
    cluster = Cluster(cluster_config(), patience=Patience(steady_s=1e6))
    await cluster.start()
    control = Control(cluster)
    try:
        old = [each.pid for each in cluster.services]
        command = [QUIRE, "roll", await control.start()]
        options = {"capture_output": True, "text": True, "timeout": 200, "check": False}
        first_line, refused = asyncio.Event(), []

        async def order_others() -> None:
            await first_line.wait()
            for order in (cluster.roll(lambda _: None), cluster.resize(2)):
                with pytest.raises((ConfigError, UnavailableError)) as error:
                    await order
                refused.append(str(error.value))

        roll = cluster.roll
        others = asyncio.create_task(order_others())

        async def noticed(say: Callable[[str], None], timeout_s: int = 0) -> None:
            def say_and_notice(line: str) -> None:
                say(line)
                first_line.set()

            await roll(say_and_notice, timeout_s)

        cluster.roll = noticed  # type: ignore[method-assign]
        done = await asyncio.to_thread(subprocess.run, command, **options)
        assert (done.returncode, done.stderr) == (0, "")
        new = [each.pid for each in cluster.services]
        names = ("worker 0", "scheduler", "router")
        for line, name, before, after in zip(
            done.stdout.splitlines(), names, old, new, strict=False
        ):
            assert line.startswith(f"{name}: pid {before} -> {after}, ")
        await others
        assert refused == [
            "roll: must wait for the roll that is under way",
            "resize: must wait for the roll that is under way",
        ]
    finally:
        await control.stop()
        await cluster.stop()
