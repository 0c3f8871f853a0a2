"""`make bench-speculation`: one stream with and without drafts, where text repeats and where not.

Two clusters over loopback, one of them with `--speculation`, serve the same streams in turn: a
Llama of 12 layers of 768 with made-up weights. Its worker computes and samples as always, but the
token that is drawn is replaced by that of a given text: so the text is real, and the time is the
model's.

With prompt lookup there are three kinds of text. Edits: the prompt is a file of this repository
before a commit, the output the file after it, from shortly before the first change on. Prose:
documentation goes on. Random: tokens among which nothing repeats, so that all there is to see is
what trying costs.

With a draft model, a Llama of 2 layers of 256, texts are random, and its drafts are replaced as
well: each is the text's token with a probability, by which kinds are named, and else a wrong one.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from bench.dummy_model import write_model
from bench.tensor_parallel import CONFIG
from launch.cluster.supervisor import Cluster, ClusterConfig, LauncherName
from quire import AsyncClient, SamplingParams
from quire.contract.engine_options import SpeculationMode
from quire.contract.outputs import CellState, Delta
from quire.observe import log
from worker_svc.arrays import IntArray

ROOT = Path(__file__).resolve().parents[1]
NUM_TOKENS = 320
MAX_MODEL_LEN = 4096
MAX_PROMPT = MAX_MODEL_LEN - NUM_TOKENS
# Output begins so many tokens before the first change of an edit.
BEFORE_CHANGE = 48
VOCAB_SIZE: int = CONFIG["vocab_size"]  # type: ignore[assignment]
DRAFT_CONFIG = {
    **CONFIG,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SHARES_RIGHT = (0.9, 0.6, 0.0)
TARGETS = {
    SpeculationMode.PROMPT_LOOKUP: {"edits": 1.8, "random": 0.97},
    SpeculationMode.DRAFT_MODEL: {"90%": 1.5, "0%": 0.97},
}


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what follows it, in tokens, and the share of it that a draft model guesses."""

    prompt: list[int]
    output: list[int]
    share_right: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One stream: its output tokens per second after the first, and its drafts."""

    tokens_per_s: float
    drafted: int
    accepted: int


# ---------------------------------------------------------------- texts


async def edits(client: AsyncClient, count: int) -> list[Text]:
    """Return edits of the files of this repository, the latest first."""
    found: list[Text] = []
    commits = _git("log", "--no-merges", "--diff-filter=M", "--name-only", "--format=@%H")
    commit = ""
    for line in commits.splitlines():
        if line.startswith("@"):
            commit = line[1:]
        if not line.endswith(".py") or len(found) == count:
            continue
        before, after = (_git("show", f"{each}:{line}") for each in (f"{commit}^", commit))
        old, new = await client.tokenize(before), await client.tokenize(after)
        same = next(
            (i for i, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) > 1), 0
        )
        begin = max(0, same - BEFORE_CHANGE)
        output = list(new[begin : begin + NUM_TOKENS])
        prompt = [*old, *new[:begin]]
        if len(prompt) <= MAX_PROMPT and len(output) == NUM_TOKENS:
            found.append(Text(prompt, output))
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


async def prose(client: AsyncClient, count: int) -> list[Text]:
    """Return pieces of documentation, cut in two."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md"))[:count]:
        tokens = list(await client.tokenize(path.read_text()))[: 2 * NUM_TOKENS]
        found.append(Text(tokens[:-NUM_TOKENS], tokens[-NUM_TOKENS:]))
    return [text for text in found if text.prompt]


def random_texts(count: int, share_right: float = 0.0) -> list[Text]:
    """Return tokens among which no three come twice in a row."""
    draw, ids = Random(0), range(VOCAB_SIZE)
    return [
        Text(draw.sample(ids, NUM_TOKENS), draw.sample(ids, NUM_TOKENS), share_right)
        for _ in range(count)
    ]


# ---------------------------------------------------------------- a worker that follows texts


def serve_texts(texts: list[Text], ready: Connection) -> None:
    """Serve a worker whose sequences of seed i have the tokens of text i.

    Args:
        texts: by seed.
        ready: gets the address of the worker.
    """
    asyncio.run(_serve_texts(texts, ready))


async def _serve_texts(texts: list[Text], ready: Connection) -> None:
    import torch

    from quire.rpc import stop_signal
    from worker_svc import ops
    from worker_svc.config import WorkerConfig
    from worker_svc.device.cpu import CpuDevice
    from worker_svc.service.server import WorkerServer
    from worker_svc.steps.draft_model import DraftModel
    from worker_svc.steps.rows import SequenceRows

    full = [[*text.prompt, *text.output] for text in texts]
    sample, draft = ops.sample, DraftModel.__call__

    def follow(logits: torch.Tensor, **columns: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _, ok = sample(logits, **columns)
        places = zip(columns["seed"].tolist(), columns["position"].tolist(), strict=True)
        followed = [(full[seed][position : position + 1] or [0])[0] for seed, position in places]
        return torch.tensor(followed, dtype=torch.int64), ok

    def follow_partly(
        self: DraftModel, held: SequenceRows, rows: IntArray, num_slots: IntArray
    ) -> IntArray:
        num_drafts, ends = draft(self, held, rows, num_slots), held.num_tokens[rows]
        seeds = held.sampling.columns(rows, ends)["seed"].tolist()
        for row, seed, end, count in zip(rows, seeds, ends, num_drafts, strict=True):
            for position in range(end, min(end + count, len(full[seed]))):
                is_right = Random(position).random() < texts[seed].share_right
                held.token_ids[row, position] = full[seed][position] if is_right else 0
        return num_drafts

    log.configure("worker", "warning")
    ops.sample = follow  # type: ignore[assignment]
    DraftModel.__call__ = follow_partly  # type: ignore[method-assign]
    server = WorkerServer(WorkerConfig(port=0), CpuDevice())
    ready.send(await server.start())
    await stop_signal()
    await server.stop()


class TextCluster:
    """A cluster over a worker that follows texts.

    Args:
        model: directory.
        texts: by seed.
        options: of the engine.
    """

    def __init__(self, model: Path, texts: list[Text], **options: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        ready, child = spawn.Pipe()
        self._worker = spawn.Process(target=serve_texts, args=(texts, child), daemon=True)
        self._worker.start()
        self._cluster = Cluster(
            ClusterConfig(
                model=model,
                port=None,
                grpc_port=0,
                load_format="dummy",
                max_model_len=MAX_MODEL_LEN,
                kv_cache_gib=0.25,
                launcher=LauncherName.STATIC,
                workers=(ready.recv(),),
                enable_prefix_caching=False,
                **options,
            )
        )

    async def __aenter__(self) -> AsyncClient:
        await self._cluster.start()
        return AsyncClient(self._cluster.router.address)

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.stop()
        self._worker.terminate()
        self._worker.join()


# ---------------------------------------------------------------- measuring


async def stream(client: AsyncClient, index: int, text: Text) -> Result:
    """Run one stream to its end."""
    params = SamplingParams(seed=index, max_tokens=NUM_TOKENS, ignore_eos=True)
    before, tokens, times, num_first = await state(client), list[int](), list[float](), 0
    async for event in client.stream(text.prompt, params):
        if isinstance(event, Delta) and event.token_ids:
            tokens += event.token_ids
            times.append(time.perf_counter())
            num_first = num_first or len(tokens)
    assert tokens == text.output, "the worker strayed from the text"
    after = await state(client, before.tokens_total + NUM_TOKENS)
    return Result(
        (NUM_TOKENS - num_first) / (times[-1] - times[0]),
        after.draft_tokens_total - before.draft_tokens_total,
        after.accepted_draft_tokens_total - before.accepted_draft_tokens_total,
    )


async def state(client: AsyncClient, num_tokens: int = 0) -> CellState:
    """Return the state of the cell once it is idle and has sampled so many tokens."""
    async for cells in client.watch_cluster():
        found = cells[0].state
        if found.num_running == 0 and found.tokens_total >= num_tokens:
            return found
    raise AssertionError("the router ended")


def report(kind: str, plain: list[Result], drafting: list[Result]) -> float:
    """Print medians of a kind of text and return the ratio of the speeds."""
    speeds = [
        statistics.median(each.tokens_per_s for each in results) for results in (plain, drafting)
    ]
    gain = statistics.median(
        b.tokens_per_s / a.tokens_per_s for a, b in zip(plain, drafting, strict=True)
    )
    drafted, accepted = (
        sum(getattr(each, name) for each in drafting) for name in ("drafted", "accepted")
    )
    share = accepted / drafted if drafted else 0.0
    print(
        f"  {kind:<8}{speeds[0]:10.1f}{speeds[1]:10.1f}{gain:9.2f}x"
        f"{drafted:10,}{accepted:10,}{share:9.0%}",
        flush=True,
    )
    return gain


async def bench(method: SpeculationMode, kinds: list[str], num_texts: int, rounds: int) -> None:
    """Start both clusters, run all streams in turn, print the table."""
    with tempfile.TemporaryDirectory() as directory:
        model, draft_model = (Path(directory) / name for name in ("model", "draft"))
        for path, config in ((model, CONFIG), (draft_model, DRAFT_CONFIG)):
            path.mkdir()
            write_model(path, {**config, "max_position_embeddings": MAX_MODEL_LEN})
        drafts: dict[str, Any] = {"speculation": method}
        if method == SpeculationMode.DRAFT_MODEL:
            drafts["draft_model"] = str(draft_model)
            texts = {f"{share:.0%}": random_texts(num_texts, share) for share in SHARES_RIGHT}
        else:
            texts = await read_texts(model, num_texts)
        texts = {kind: each for kind, each in texts.items() if not kinds or kind in kinds}
        flat = [text for each in texts.values() for text in each]
        async with AsyncExitStack() as stack:
            plain, drafting = [
                await stack.enter_async_context(TextCluster(model, flat, **options))
                for options in ({}, drafts)
            ]
            os.nice(5)
            for client in (plain, drafting):
                await stream(client, 0, flat[0])
            print("  text    plain t/s  drafts t/s    gain   drafted  accepted    share")
            gains, index = {}, 0
            for kind, each in texts.items():
                results: tuple[list[Result], list[Result]] = [], []
                for _ in range(rounds):
                    for place, text in enumerate(each, index):
                        for client, found in zip((plain, drafting), results, strict=True):
                            found.append(await stream(client, place, text))
                index += len(each)
                gains[kind] = report(kind, *results)
    for kind, target in TARGETS[method].items():
        if kind in gains:
            verdict = "met" if gains[kind] >= target else "MISSED"
            print(f"  {kind}: {gains[kind]:.2f}x, target >= {target}: {verdict}")


async def read_texts(model: Path, count: int) -> dict[str, list[Text]]:
    """Return the texts of each kind; a cluster of its own turns them into tokens."""
    async with TextCluster(model, []) as client:
        return {
            "edits": await edits(client, count),
            "prose": await prose(client, count),
            "random": random_texts(count),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", type=SpeculationMode, choices=list(TARGETS), default=next(iter(TARGETS))
    )
    parser.add_argument("--kinds", nargs="*", default=[], help="of text; all without it")
    parser.add_argument("--num-texts", type=int, default=6, help="of each kind")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    log.configure("bench", "warning")
    asyncio.run(bench(**vars(arguments)))
