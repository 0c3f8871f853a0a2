"""The benchmark of a cluster on a GPU, on the CPU: it measures all that is asked for."""

from pathlib import Path

from bench import gpu_cluster
from bench.dummy_model import write_model
from bench.gpu import LLAMA_3_8B

SMALL = {
    **LLAMA_3_8B,
    "vocab_size": 8192,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


async def test_every_set_of_prompts_is_measured(tmp_path: Path) -> None:
    write_model(tmp_path, SMALL)
    prompts = [[[5, 6, 7]], [[number, 8] for number in range(4)]]
    results = await gpu_cluster.measure(
        tmp_path,
        prompts,
        num_tokens=9,
        device="cpu",
        load_format="dummy",
        num_threads=1,
        max_model_len=32,
        num_gpu_blocks_override=16,
    )
    assert [each.streams for each in results] == [1, 4]
    for each in results:
        assert each.first_token_ms > 0
        assert 0 <= each.token_ms <= each.longest_ms
        # The whole takes longer than to a first token.
        seconds = 9 * each.streams / each.tokens_per_s
        assert 1e3 * seconds >= each.first_token_ms
