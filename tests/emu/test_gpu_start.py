"""The benchmark of a worker's start, on the emulated GPU."""

from bench.gpu import LLAMA_3_8B
from bench.gpu_start import Start
from quire.contract.engine_options import CacheOptions, LoadOptions
from tests.emu.emulated_device import EmulatedDevice

CONFIG = LLAMA_3_8B | {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
}


def test_every_request_is_served_to_its_end(emulated_gpu: EmulatedDevice) -> None:
    options = CacheOptions(
        max_num_seqs=10, max_num_batched_tokens=64, kv_cache_gib=0.01, swap_space=0.0
    )
    start = Start(CONFIG, emulated_gpu, options, LoadOptions(load_format="dummy"))
    assert list(start.seconds) == ["load", "profile", "cache and graphs"]
    num_steps = start.serve()
    # Two prompts of 64 tokens, then 63 tokens more of each, one in a step.
    assert num_steps >= 2 + 63
    assert start.worker.mirror().last_step_id == num_steps
