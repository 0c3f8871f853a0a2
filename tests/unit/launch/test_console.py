"""What `quire serve` prints of a model: how large its cache is, and which option says so."""

from typing import Any

from typer.main import get_command

from launch.cli.console import _model_lines
from launch.cli.main import app
from quire.contract.outputs import CellState, CellStatus, ModelInfo

COMMAND: Any = get_command(app)
MODEL = ModelInfo(
    name="tiny",
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    vocab_size=4096,
    max_model_len=1024,
    eos_token_ids=(0,),
    num_parameters=5_478_400,
)


def cache_line(kv_cache_bytes: int) -> str:
    state = CellState(block_size=16, num_blocks=16384, kv_cache_bytes=kv_cache_bytes)
    cluster: Any = None  # all is known of the model
    lines = _model_lines(cluster, CellStatus("127.0.0.1:1", True, MODEL, state))
    [found] = [line for line in lines if line.startswith("  KV cache ")]
    return found


def test_the_size_of_the_cache_names_its_option() -> None:
    assert cache_line(3 * 2**28) == (
        "  KV cache   0.75 GiB (--kv-cache-gib): 16,384 blocks of 16 = 262,144 tokens "
        "(256.0 requests of full length at once)"
    )
    flags = {flag for each in COMMAND.commands["serve"].params for flag in each.opts}
    assert "--kv-cache-gib" in flags


def test_without_a_size_there_are_blocks_alone() -> None:
    """A scheduler of an earlier release tells none."""
    assert cache_line(kv_cache_bytes=0).startswith("  KV cache   16,384 blocks of 16 = ")
