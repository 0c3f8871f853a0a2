"""Prompts that are made, and those of files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.bench.dataset_options import DatasetOptions
from launch.bench.datasets import Sample, load_samples
from launch.bench.tokens import Tokens, find_tokenizer
from quire.contract.errors import ConfigError
from tests.fakes import small_tokenizers


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    found = find_tokenizer("demo_model")
    assert found is not None
    return found


def load(tokens: Tokens | None, *, as_text: bool = False, **options: Any) -> list[Sample]:
    made = DatasetOptions(**options)
    return load_samples(made, tokens, np.random.default_rng(made.seed), as_text=as_text)


def test_random_prompts_have_their_length_in_ordinary_tokens(tokens: Tokens) -> None:
    samples = load(tokens, num_prompts=20, random_input_len=50, random_output_len=7)
    assert [(len(each.prompt), each.num_prompt_tokens) for each in samples] == [(50, 50)] * 20
    assert {each.num_output_tokens for each in samples} == {7}
    tokenizer = tokens._backend
    special = [each for each, it in tokenizer.get_added_tokens_decoder().items() if it.special]
    drawn = {token for each in samples for token in each.prompt}
    assert special
    assert not drawn & set(special)
    assert drawn <= set(range(tokenizer.get_vocab_size()))
    assert len({tuple(each.prompt) for each in samples}) == 20


def test_a_seed_gives_the_same_prompts(tokens: Tokens) -> None:
    for name in ("random", "prefix_repetition"):
        options: dict[str, Any] = {"dataset_name": name, "num_prompts": 5}
        assert load(tokens, **options) == load(tokens, **options)
        assert load(tokens, **options) != load(tokens, **options, seed=1)


def test_a_range_is_round_the_length_and_the_prefix_comes_before_it(tokens: Tokens) -> None:
    samples = load(
        tokens,
        num_prompts=300,
        random_input_len=20,
        random_output_len=10,
        random_range_ratio=0.5,
        random_prefix_len=6,
    )
    assert {each.num_prompt_tokens - 6 for each in samples} == set(range(10, 31))
    assert {each.num_output_tokens for each in samples} == set(range(5, 16))
    assert len({tuple(each.prompt[:6]) for each in samples}) == 1
    assert len({tuple(each.prompt[:7]) for each in samples}) > 1


def test_general_lengths_are_those_of_the_dataset(tokens: Tokens) -> None:
    [sample] = load(tokens, num_prompts=1, input_len=9, output_len=3)
    assert (sample.num_prompt_tokens, sample.num_output_tokens) == (9, 3)


@pytest.mark.parametrize("kind", ["demo_model", "byte_level", "byte_fallback"])
def test_a_text_has_as_many_tokens_as_were_asked_for(tokens: Tokens, kind: str) -> None:
    tried = tokens if kind == "demo_model" else Tokens(getattr(small_tokenizers, kind)())
    samples = load(tried, as_text=True, num_prompts=30, random_input_len=40)
    assert all(isinstance(each.prompt, str) for each in samples)
    assert [each.num_prompt_tokens for each in samples] == [40] * 30
    assert [tried.count(str(each.prompt)) for each in samples] == [40] * 30


def test_prefixes_are_repeated(tokens: Tokens) -> None:
    samples = load(
        tokens,
        dataset_name="prefix_repetition",
        num_prompts=14,
        prefix_repetition_prefix_len=8,
        prefix_repetition_suffix_len=5,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=2,
    )
    prefixes = [tuple(each.prompt[:8]) for each in samples]
    assert sorted(prefixes.count(each) for each in set(prefixes)) == [4, 5, 5]
    assert len({tuple(each.prompt) for each in samples}) == 14
    assert {(each.num_prompt_tokens, each.num_output_tokens) for each in samples} == {(13, 2)}


@pytest.fixture
def sharegpt(tmp_path: Path) -> Path:
    talks = [
        ["What is a list in Python?", "A list is a sequence that can be changed in place."],
        ["Hi", "Too short a prompt, this one."],
        ["An answer of one word is too short", "Yes"],
        ["word " * 3000, "The prompt is too long to be sent at all."],
        ["A question without an answer"],
        ["How do I sort it by length?", "Give the function len as key to sort."],
    ]
    path = tmp_path / "sharegpt.json"
    turns = [[{"from": "human", "value": each} for each in talk] for talk in talks]
    path.write_text(json.dumps([{"conversations": each} for each in turns]))
    return path


def test_sharegpt_is_read_with_answers_as_long_as_its_own(tokens: Tokens, sharegpt: Path) -> None:
    options: dict[str, Any] = {"dataset_name": "sharegpt", "dataset_path": sharegpt}
    samples = load(tokens, **options, num_prompts=5, disable_shuffle=True)
    first, second = "What is a list in Python?", "How do I sort it by length?"
    assert [each.prompt for each in samples] == [first, second, first, second, first]
    assert samples[0].num_prompt_tokens == tokens.count(first)
    assert samples[1].num_output_tokens == tokens.count("Give the function len as key to sort.")
    # With a length of its own, an answer of one word will do.
    fixed = load(tokens, **options, num_prompts=9, sharegpt_output_len=3, no_oversample=True)
    assert len(fixed) == 3
    assert {each.num_output_tokens for each in fixed} == {3}


def test_a_file_of_ones_own_has_a_prompt_in_each_line(tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "The list class", "output_tokens": 3},
        {"prompt": "def", "output_tokens": 5},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    options: dict[str, Any] = {"dataset_name": "custom", "dataset_path": path, "num_prompts": 2}
    shuffled = load(tokens, **options)
    assert {each.num_output_tokens for each in shuffled} == {256}
    ordered = load(None, **options, disable_shuffle=True, custom_output_len=-1)
    assert ordered == [Sample("The list class", 0, 3), Sample("def", 0, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 must be JSON"),
        ('{"prompt": 5}', "line 1 must have a text as prompt"),
        ("[]", "line 1 must have a text as prompt"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1 must have output_tokens of at least 1"),
        ("\n", "must have prompts"),
    ],
)
def test_a_file_that_is_none_is_refused_by_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^dataset_path: {message}"):
        load(None, dataset_name="custom", dataset_path=path, custom_output_len=-1)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^tokenizer: must name a model that is on this machine"):
        load(None)
    for options in ({"dataset_name": "sharegpt"}, {"dataset_path": tmp_path}):
        with pytest.raises(ConfigError, match=r"^dataset_path: must be given with sharegpt and"):
            DatasetOptions(**options)
    with pytest.raises(ConfigError, match=r"^dataset_path: cannot read"):
        load(None, dataset_name="custom", dataset_path=tmp_path / "none")
    assert find_tokenizer(str(tmp_path / "none"), None) is None
