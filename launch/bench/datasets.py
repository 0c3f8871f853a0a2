"""Prompts to send: random tokens, or those of a file."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from launch.bench.dataset_options import DatasetName, DatasetOptions
from launch.bench.tokens import Tokens
from quire.contract.errors import ConfigError

# Conversations of ShareGPT that count, as `vllm bench` chooses them: of neither a word nor a book.
SHAREGPT_LEAST = 4
SHAREGPT_LONGEST_PROMPT = 1024
SHAREGPT_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class Sample:
    """A request to send.

    Attributes:
        prompt: text, or token ids.
        num_prompt_tokens: without special ones; 0 if no tokenizer is known.
        num_output_tokens: largest number for the answer.
    """

    prompt: str | Sequence[int]
    num_prompt_tokens: int
    num_output_tokens: int


def load_samples(
    options: DatasetOptions, tokens: Tokens | None, rng: np.random.Generator, *, as_text: bool
) -> list[Sample]:
    """Return what to send.

    Args:
        options: which.
        tokens: of the model; None if they are not known here.
        rng: draws prompts, or their order.
        as_text: make texts of random tokens, too.

    Raises:
        ConfigError: the file is not of the format, or the tokens of the model are needed.
    """
    name = options.dataset_name
    if tokens is None and name != DatasetName.CUSTOM:
        raise ConfigError(
            f"tokenizer: must name a model that is on this machine with {name}, got none"
        )
    if name == DatasetName.CUSTOM:
        return _of_file(options, list(_custom(options, tokens)), rng)
    assert tokens is not None
    if name == DatasetName.SHAREGPT:
        return list(_sharegpt(options, tokens, rng))
    make = _random if name == DatasetName.RANDOM else _prefix_repetition
    return [
        _made(tokens, prefix, suffix_len, output_len, rng, as_text)
        for prefix, suffix_len, output_len in make(options, tokens, rng, as_text)
    ]


_Made = Iterator[tuple[npt.NDArray[np.int64], int, int]]


def _draw(
    tokens: Tokens, rng: np.random.Generator, count: int, as_text: bool
) -> npt.NDArray[np.int64]:
    return tokens.draw_words(rng, count) if as_text else tokens.draw(rng, count)


def _made(
    tokens: Tokens,
    prefix: npt.NDArray[np.int64],
    suffix_len: int,
    output_len: int,
    rng: np.random.Generator,
    as_text: bool,
) -> Sample:
    ids = np.concatenate([prefix, _draw(tokens, rng, suffix_len, as_text)])
    if not as_text:
        return Sample(ids.tolist(), len(ids), output_len)
    text = tokens.text_of(ids, rng)
    return Sample(text, tokens.count(text), output_len)


def _random(
    options: DatasetOptions, tokens: Tokens, rng: np.random.Generator, as_text: bool
) -> _Made:
    """Yield prompts that share nothing but the prefix that was asked for."""
    ratio = options.random_range_ratio

    def lengths(middle: int) -> list[int]:
        low, high = int(middle * (1 - ratio)), int(np.ceil(middle * (1 + ratio)))
        drawn: list[int] = rng.integers(
            max(1, low), high, options.num_prompts, endpoint=True
        ).tolist()
        return drawn

    input_lens = lengths(options.input_len or options.random_input_len)
    output_lens = lengths(options.output_len or options.random_output_len)
    prefix = _draw(tokens, rng, options.random_prefix_len, as_text)
    for input_len, output_len in zip(input_lens, output_lens, strict=True):
        yield prefix, input_len, output_len


def _prefix_repetition(
    options: DatasetOptions, tokens: Tokens, rng: np.random.Generator, as_text: bool
) -> _Made:
    """Yield prompts each of which begins with one of a few prefixes, in any order."""
    prefixes = [
        _draw(tokens, rng, options.prefix_repetition_prefix_len, as_text)
        for _ in range(min(options.prefix_repetition_num_prefixes, options.num_prompts))
    ]
    order = np.arange(options.num_prompts) % len(prefixes)
    if not options.disable_shuffle:
        rng.shuffle(order)
    output_len = options.output_len or options.prefix_repetition_output_len
    for number in order:
        yield prefixes[number], options.prefix_repetition_suffix_len, output_len


def _of_file(
    options: DatasetOptions, samples: list[Sample], rng: np.random.Generator
) -> list[Sample]:
    if not options.disable_shuffle:
        samples = [samples[place] for place in rng.permutation(len(samples))]
    return _as_many(options, samples)


def _as_many(options: DatasetOptions, samples: list[Sample]) -> list[Sample]:
    """Return as many as were asked for, some again if there are fewer."""
    if not samples:
        raise ConfigError(
            f"dataset_path: must have prompts of a length that is sent, got {options.dataset_path}"
        )
    wanted = options.num_prompts
    if options.no_oversample:
        wanted = min(wanted, len(samples))
    return list(islice(cycle(samples), wanted))


def _custom(options: DatasetOptions, tokens: Tokens | None) -> Iterator[Sample]:
    """Yield the prompts of a file of JSON lines."""
    path = options.dataset_path
    assert path is not None
    fixed = options.output_len or options.custom_output_len
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        values = _parsed(line, path, f"line {number}")
        prompt = values.get("prompt") if isinstance(values, dict) else None
        if not isinstance(prompt, str):
            raise ConfigError(f"dataset_path: line {number} must have a text as prompt")
        output_len = values.get("output_tokens") if fixed == -1 else fixed
        if not isinstance(output_len, int) or isinstance(output_len, bool) or output_len < 1:
            raise ConfigError(
                f"dataset_path: line {number} must have output_tokens of at least 1 with "
                f"custom_output_len -1, got {output_len!r}"
            )
        yield Sample(prompt, 0 if tokens is None else tokens.count(prompt), output_len)


def _sharegpt(options: DatasetOptions, tokens: Tokens, rng: np.random.Generator) -> list[Sample]:
    """Return first messages of conversations, with answers as long as the second ones."""
    path = options.dataset_path
    assert path is not None
    entries = _parsed(_read(path), path, "it")
    if not isinstance(entries, list):
        raise ConfigError(f"dataset_path: must be a list of conversations, got {path}")
    talks = [
        [turn["value"] for turn in entry["conversations"][:2]]
        for entry in entries
        if len(entry.get("conversations", ())) >= 2
    ]
    order = np.arange(len(talks)) if options.disable_shuffle else rng.permutation(len(talks))
    fixed = options.output_len or options.sharegpt_output_len
    samples: list[Sample] = []
    for place in order:
        prompt, answer = talks[place]
        prompt_len = tokens.count(prompt)
        output_len = fixed or tokens.count(answer)
        fits = SHAREGPT_LEAST <= prompt_len <= SHAREGPT_LONGEST_PROMPT
        fits = fits and prompt_len + output_len <= SHAREGPT_LONGEST
        if fits and (fixed or output_len >= SHAREGPT_LEAST):
            samples.append(Sample(prompt, prompt_len, output_len))
        if len(samples) == options.num_prompts:
            break
    return _as_many(options, samples)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset_path: cannot read {path}: {error}") from None


def _parsed(text: str, path: Path, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"dataset_path: {what} must be JSON, got {path}: {error}") from None
