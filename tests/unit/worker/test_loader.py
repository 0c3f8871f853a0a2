"""Model directories that load, and what the loaded model is. Bad ones: test_bad_models.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tests.factories import (
    CONFIGS,
    EOS_TOKEN_ID,
    FALLBACKS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    bloom_config,
    edit_config,
    gpt2_config,
    gpt_neox_config,
    llama_config,
    opt_config,
    random_model,
    rope,
    save_model,
)
from tests.models.driver import Driver, load_runner
from worker_svc.cache.profile import profile_cache
from worker_svc.loading.dummy_weights import DummyCheckpoint
from worker_svc.loading.loader import LoadedModel, load_model
from worker_svc.parallel.group import ParallelGroup
from worker_svc.steps.runner import ModelRunner

PROMPT = [5, 9, 77, 30]


def load(directory: Path, **spec: object) -> LoadedModel:
    return load_model(LoadSpec(str(directory), LoadOptions(**spec)), "tiny", ParallelGroup())  # type: ignore[arg-type]


def edit_weights(directory: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", CONFIGS)
def test_info_describes_the_model(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    save_model(tmp_path, config)
    info = load(tmp_path).info
    assert info.name == "tiny"
    assert info.architecture == config.architectures[0]
    assert info.dtype == "float32"
    assert info.max_model_len == MAX_POSITIONS
    assert info.eos_token_ids == (EOS_TOKEN_ID,)
    model = random_model(config)
    # To transformers the bias of a choice of experts is no parameter.
    biases = [each for name, each in model.named_buffers() if "correction_bias" in name]
    assert info.num_parameters == model.num_parameters() + sum(map(torch.numel, biases))


def test_dtype_auto_takes_the_config_s(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    edit_config(tmp_path, dtype="bfloat16")
    assert load(tmp_path).dtype == torch.bfloat16
    assert load(tmp_path, dtype="float16").dtype == torch.float16
    edit_config(tmp_path, dtype=None, torch_dtype="float16")
    assert load(tmp_path).info.dtype == "float16"
    edit_config(tmp_path, torch_dtype=None)
    assert load(tmp_path).info.dtype == "float32"


def test_generation_config_names_the_end_tokens_before_config(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load(tmp_path).info.eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").unlink()
    edit_config(tmp_path, eos_token_id=5)
    assert load(tmp_path).info.eos_token_ids == (5,)


@pytest.mark.parametrize("outside", [-1, VOCAB_SIZE])
def test_end_tokens_that_the_vocabulary_lacks_are_left_out(tmp_path: Path, outside: int) -> None:
    save_model(tmp_path, llama_config())
    edit_config(tmp_path, eos_token_id=[outside, 5])
    generation_config = tmp_path / "generation_config.json"
    generation_config.write_text(f'{{"eos_token_id": [{outside}, 7]}}')
    assert load(tmp_path).info.eos_token_ids == (7,)
    generation_config.write_text(f'{{"eos_token_id": {outside}}}')
    assert load(tmp_path).info.eos_token_ids == (5,)


def write_tokenizer(directory: Path, config: object, special: object = None) -> None:
    """A tokenizer in which the text "</s>" is the token 12."""
    tokenizer = Tokenizer(WordLevel({"a": 0, "</s>": 12, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if special is not None:
        (directory / "special_tokens_map.json").write_text(json.dumps(special))


PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
NAMED = {**PLAIN, "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("config", "special", "own"),
    [
        (NAMED, None, (12,)),
        ({**PLAIN, "eos_token": {"content": "</s>", "__type": "AddedToken"}}, None, (12,)),
        (PLAIN, {"eos_token": {"content": "</s>"}}, (12,)),
        # What is said of the tokenizer itself counts more.
        ({**PLAIN, "eos_token": None}, {"eos_token": "</s>"}, ()),
        ({**NAMED, "added_tokens_decoder": {"9": {"content": "</s>"}}}, None, (9,)),
        ({**NAMED, "added_tokens_decoder": {"400": {"content": "</s>"}}}, None, ()),
        ({**PLAIN, "eos_token": "<a token that there is not>"}, None, ()),
        ({**PLAIN, "eos_token": 7}, None, ()),
        ([], {"eos_token": "</s>"}, (12,)),
        (PLAIN, None, ()),
    ],
    ids=str,
)
def test_the_tokenizer_s_end_token_ends_texts_too(
    config: object, special: object, own: tuple[int, ...], tmp_path: Path
) -> None:
    save_model(tmp_path, llama_config())
    write_tokenizer(tmp_path, config, special)
    assert load(tmp_path).info.eos_token_ids == (EOS_TOKEN_ID, *own)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 12]}')
    expected = (7, 12) if own == (12,) else (7, 12, *own)
    assert load(tmp_path).info.eos_token_ids == expected
    (tmp_path / "generation_config.json").write_text("{}")
    edit_config(tmp_path, eos_token_id=None)
    assert load(tmp_path).info.eos_token_ids == own


def test_the_end_token_of_a_tokenizer_s_class_where_no_file_names_one(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    vocabulary = {"a": 0, "<|endoftext|>": 5}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert load(tmp_path).info.eos_token_ids == (EOS_TOKEN_ID,)
    edit_config(tmp_path, eos_token_id=None)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert load(tmp_path).info.eos_token_ids == (5,)
    # Named, it is one of the same vocabulary.
    named = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "a"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert load(tmp_path).info.eos_token_ids == (0,)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "deepseek_v3", "helium"])
def test_model_type_is_enough_where_no_architecture_is_named(name: str, tmp_path: Path) -> None:
    config = {**CONFIGS, **FALLBACKS}[name]()
    save_model(tmp_path, config)
    expected = Driver(load_runner(tmp_path)).generate([PROMPT], 8)
    for absent in ({"architectures": None}, {"architectures": []}):
        edit_config(tmp_path, **absent)
        assert load(tmp_path).info.architecture == config.architectures[0]
        assert Driver(load_runner(tmp_path)).generate([PROMPT], 8) == expected


def test_sharded_checkpoint_gives_the_same_tokens(tmp_path: Path) -> None:
    save_model(tmp_path / "one", llama_config())
    save_model(tmp_path / "many", llama_config(), max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    one, many = (
        Driver(load_runner(tmp_path / name)).generate([PROMPT], 8) for name in ("one", "many")
    )
    assert one == many


@pytest.mark.parametrize(
    ("config", "prefix"),
    [
        (gpt2_config(), "transformer."),
        (opt_config(), "model."),
        (gpt_neox_config(), "gpt_neox."),
        (bloom_config(), "transformer."),
    ],
)
def test_checkpoint_saved_without_its_head(config: object, prefix: str, tmp_path: Path) -> None:
    save_model(tmp_path, config)  # type: ignore[arg-type]
    expected = Driver(load_runner(tmp_path)).generate([PROMPT], 8)

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)

    edit_weights(tmp_path, strip)
    assert Driver(load_runner(tmp_path)).generate([PROMPT], 8) == expected


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.weight"])
def test_head_of_gpt_neox_under_either_name(name: str, tmp_path: Path) -> None:
    save_model(tmp_path, gpt_neox_config())
    expected = Driver(load_runner(tmp_path)).generate([PROMPT], 8)

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        [head] = [each for each in ("embed_out.weight", "lm_head.weight") if each in tensors]
        tensors[name] = tensors.pop(head)

    edit_weights(tmp_path, rename)
    assert Driver(load_runner(tmp_path)).generate([PROMPT], 8) == expected


def test_max_model_len(tmp_path: Path) -> None:
    save_model(tmp_path, llama_config())
    assert load(tmp_path, max_model_len=100).info.max_model_len == 100
    with pytest.raises(
        ModelLoadError, match=r"max_model_len: must be at most the model's 256, got 257"
    ):
        load(tmp_path, max_model_len=257)
    edit_config(tmp_path, rope_parameters=rope("linear", factor=2.0))
    assert load(tmp_path, max_model_len=512).info.max_model_len == 512


def test_a_draft_model_is_whole_and_counts(tmp_path: Path) -> None:
    for name in ("model", "draft"):
        save_model(tmp_path / name, llama_config())
    alone, loaded = (
        load(tmp_path / "model", draft_model=each) for each in ("", str(tmp_path / "draft"))
    )
    assert alone.draft is None
    assert loaded.draft is not None
    assert loaded.weight_bytes == 2 * alone.weight_bytes
    assert loaded.info == alone.info
    options = CacheOptions(block_size=16, kv_cache_gib=2**-10)
    profiles = [profile_cache(each, options) for each in (alone, loaded)]
    assert profiles[1].block_bytes == 2 * profiles[0].block_bytes
    assert profiles[1].num_blocks == profiles[0].num_blocks // 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"vocab_size": VOCAB_SIZE + 1},
            f"draft_model: vocabulary must be at most the model's {VOCAB_SIZE} tokens, "
            f"got {VOCAB_SIZE + 1}",
        ),
        (
            {"max_position_embeddings": 16},
            f"draft_model: max_model_len: must be at most the model's 16, got {MAX_POSITIONS}",
        ),
        (None, "draft_model: .*: no such directory"),
    ],
)
def test_a_draft_model_that_does_not_fit(
    config: dict[str, int] | None, message: str, tmp_path: Path
) -> None:
    save_model(tmp_path / "model", llama_config())
    if config is not None:
        save_model(tmp_path / "draft", llama_config(**config))
    with pytest.raises(ModelLoadError, match=f"^{message}$"):
        load(tmp_path / "model", draft_model=str(tmp_path / "draft"))


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "mixtral", "gpt_neox"])
def test_dummy_weights_need_a_configuration_alone(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, CONFIGS[family]())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"no model\.safetensors"):
        load(tmp_path)
    tokens = []
    for _ in range(2):
        loaded = load(tmp_path, load_format="dummy")
        assert loaded.info.num_parameters > 10_000
        driver = Driver(ModelRunner(loaded, 16, 20))
        tokens.append(driver.generate([PROMPT], 12))
        assert driver.logits[0].isfinite().all()
    assert tokens[0] == tokens[1]


def test_dummy_weights_of_a_part_are_those_of_the_whole() -> None:
    checkpoint = DummyCheckpoint(torch.device("cpu"))
    whole = checkpoint.read("layers.0.weight", (8, 6), ())
    part = checkpoint.read("layers.0.weight", (8, 6), (range(2, 4), range(1, 5)))
    assert torch.equal(part, whole[2:4, 1:5])
    assert not torch.equal(checkpoint.read("layers.1.weight", (8, 6), ()), whole)
