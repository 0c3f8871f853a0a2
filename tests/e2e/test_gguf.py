"""A GGUF file is served as it is: weights, tokenizer and chat template."""

import shutil
from pathlib import Path

from launch.cluster.config import embedded_model
from quire import LLM, SamplingParams
from tests.gguf_files import Type, tokenizer_metadata, write_gguf

PARAMS = SamplingParams(temperature=0.0, max_tokens=12)
PROMPT = "The list class"


def test_a_gguf_file_gives_the_text_of_the_directory_it_was_made_of(tmp_path: Path) -> None:
    directory = shutil.copytree(embedded_model(), tmp_path / "demo")
    path = tmp_path / "demo.gguf"
    write_gguf(directory, path, "llama", (Type.BF16,), tokenizer_metadata(directory))
    with LLM(kv_cache_gib=0.03125) as llm:
        (wanted,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
    with LLM(path, kv_cache_gib=0.03125) as llm:
        (found,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
        (chat,) = llm.chat([{"role": "user", "content": PROMPT}], PARAMS, use_tqdm=False)
    assert found.prompt_token_ids == wanted.prompt_token_ids
    assert found.outputs[0].text == wanted.outputs[0].text
    assert found.outputs[0].token_ids == wanted.outputs[0].token_ids
    assert chat.outputs[0].token_ids == wanted.outputs[0].token_ids
