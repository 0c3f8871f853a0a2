"""Scripts that end without `close`: their own status and words, and nothing beside them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARAMS = "SamplingParams(max_tokens=800, ignore_eos=True)"
HEAD = """
import asyncio, os, signal, sys, threading
from quire import *
# A shell has it ignored in what it runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = {"kv_cache_gib": 0.03125, "num_threads": 1}
"""
# By kind: the script, its status, and the last line on stderr.
SCRIPTS: dict[str, tuple[str, int, str]] = {
    "an end": ("llm = LLM(**options); llm.generate('a', use_tqdm=False)", 0, ""),
    "a status": ("llm = LLM(**options); sys.exit(3)", 3, ""),
    "an exception": (
        "llm = LLM(**options); raise RuntimeError('own')",
        1,
        "RuntimeError: own",
    ),
    "a thread in generate": (
        f"""
llm = LLM(**options)
llm.generate("a", use_tqdm=False)
wanted = ["a"] * 4
threading.Thread(
    target=lambda: llm.generate(wanted, {PARAMS}, use_tqdm=False), daemon=True
).start()
for [cell] in llm._client.watch_cluster():
    if cell.state.num_running:
        break
""",
        0,
        "",
    ),
    "a running loop": (
        """
async def main():
    globals()["llm"] = llm = LLM(**options)
    llm.generate("a", use_tqdm=False)
asyncio.run(main())
""",
        0,
        "",
    ),
    "an engine": (
        f"""
engine = LLMEngine.from_engine_args(EngineArgs(**options))
engine.add_request("1", "a", {PARAMS})
engine.step()
""",
        0,
        "",
    ),
    "Ctrl-C": (
        f"""
llm = LLM(**options)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
while True:
    llm.generate(["a"] * 4, {PARAMS}, use_tqdm=False)
""",
        -2,
        "KeyboardInterrupt",
    ),
}


def descendants_of(mark: str) -> list[str]:
    """Return the processes that have a mark in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_without_close_ends_with_its_own_words(kind: str, tmp_path: Path) -> None:
    code, status, last = SCRIPTS[kind]
    script = tmp_path / "script.py"
    script.write_text(HEAD + code)
    mark = f"QUIRE_TEST_EXIT={tmp_path}"
    name, _, value = mark.partition("=")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, name: value},
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[-1:]) == (status, [last] if last else []), done.stderr
    if last:
        # A traceback of its own, from its first line on.
        assert lines[0] == "Traceback (most recent call last):", done.stderr
        assert sum(line.startswith("Traceback") for line in lines) == 1, done.stderr
    assert not descendants_of(mark)
