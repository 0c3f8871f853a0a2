"""What ends a service is one line of its log, also where it is a bug."""

import asyncio
import json
import sys

import pytest

from quire.rpc import CONFIG_ERROR_STATUS
from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.fake_scheduler import running_scheduler as fake_scheduler
from tests.fakes.fake_worker import FakeWorker

# As the `quire` command, with a bug in a method.
CODE = """
import sys
import {module}

async def fail(*_):
    raise ZeroDivisionError("a client's text")

{module}.{method} = fail
from launch.cli.main import main
main()
"""


async def run(code: str, *arguments: str) -> tuple[int | None, str]:
    """Run a command to its end; return exit status and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *arguments), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, errors.decode()


@pytest.mark.parametrize(
    ("service", "module", "method"),
    [
        ("router", "router.server", "Router._follow_health"),
        ("router", "router.server", "Tokenizer.load"),
        ("scheduler", "scheduler_svc.driver", "Driver._step_until_lost"),
        ("scheduler", "scheduler_svc.driver", "Driver._report"),
        ("scheduler", "scheduler_svc.server", "SchedulerServer.start"),
        ("worker", "worker_svc.service.announcer", "Announcer._announce"),
        ("worker", "worker_svc.service.server", "WorkerServer.start"),
    ],
)
async def test_a_bug_that_ends_a_service_is_one_line(
    service: str, module: str, method: str
) -> None:
    code = CODE.format(module=module, method=method)
    async with FakeWorker() as worker, fake_scheduler(FakeScheduler()) as scheduler:
        peers = {
            "router": ["--scheduler", scheduler],
            "scheduler": ["--worker", worker.address],
            "worker": ["--announce-to", scheduler, "--rank", "0", "--device", "cpu"],
        }
        status, errors = await run(code, service, "--port", "0", *peers[service])
    assert status == 1, errors
    lines = [json.loads(line) for line in errors.splitlines()]
    [fatal] = [line for line in lines if line["level"] == "critical"]
    assert fatal["event"] == "service_failed"
    assert fatal["service"] == service
    assert fatal["error_type"] == "ZeroDivisionError"
    assert "in fail" in fatal["traceback"]
    # Messages of exceptions may hold what clients sent.
    assert "a client's text" not in errors


@pytest.mark.parametrize("service", ["router", "scheduler", "worker"])
async def test_an_expected_end_is_one_line_with_its_reason(service: str) -> None:
    async with FakeWorker() as worker:
        port = worker.address.rpartition(":")[2]
        peers = ["--worker", worker.address] if service == "scheduler" else []
        code = "from launch.cli.main import main; main()"
        status, errors = await run(code, service, "--port", port, *peers)
    assert status == 1
    [fatal] = map(json.loads, errors.splitlines())
    assert (fatal["level"], fatal["event"]) == ("critical", "service_failed")
    assert port in fatal["error"]
    assert fatal["traceback"]


async def test_a_configuration_that_cannot_be_used_has_no_stack() -> None:
    async with FakeWorker(num_blocks=0) as worker:
        code = "from launch.cli.main import main; main()"
        status, errors = await run(code, "scheduler", "--port", "0", "--worker", worker.address)
    assert status == CONFIG_ERROR_STATUS
    fatal = json.loads(errors.splitlines()[-1])
    assert (fatal["level"], "kv_cache_gib" in fatal["error"]) == ("critical", True)
    assert "traceback" not in fatal
