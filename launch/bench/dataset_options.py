"""Options of which prompts are sent. Names and meanings are those of `vllm bench`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quire.contract.errors import ConfigError
from quire.contract.options import Bounds, Options, option

COUNTS = Bounds(1, 10_000_000)
LENGTHS = Bounds(1, 10_000_000)
PREFIX_LENGTHS = Bounds(0, 10_000_000)
SEEDS = Bounds(0, 2**32 - 1)


class DatasetName(StrEnum):
    """Where prompts come from."""

    RANDOM = "random"
    SHAREGPT = "sharegpt"
    CUSTOM = "custom"
    PREFIX_REPETITION = "prefix_repetition"


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(Options):
    """Which prompts are sent, and how long the answers are to be."""

    dataset_name: str = option(
        DatasetName.RANDOM,
        "Prompts: 'random' token ids, conversations in the format of 'sharegpt', a 'custom' file "
        "of JSON lines with 'prompt', or random ones that share prefixes ('prefix_repetition').",
        choices=DatasetName,
    )
    dataset_path: Path | None = option(
        None, "File of sharegpt or custom.", metavar="FILE", shown_default="none"
    )
    num_prompts: int = option(1000, "Requests to send.", bounds=COUNTS)
    seed: int = option(0, "Of prompts and arrivals: the same seed, the same ones.", bounds=SEEDS)
    tokenizer: str | None = option(
        None,
        "Model directory, GGUF file or name in Hugging Face's local cache whose tokenizer counts "
        "and makes prompts.",
        metavar="MODEL",
        shown_default="that of the model",
    )
    input_len: int | None = option(
        None,
        "Tokens of a random prompt; the same as --random-input-len.",
        bounds=LENGTHS,
        shown_default="that of --random-input-len",
    )
    output_len: int | None = option(
        None,
        "Tokens of an answer, for any dataset.",
        bounds=LENGTHS,
        shown_default="that of the dataset",
    )
    random_input_len: int = option(1024, "Tokens of a random prompt.", bounds=LENGTHS)
    random_output_len: int = option(128, "Tokens of an answer to one.", bounds=LENGTHS)
    random_range_ratio: float = option(
        0.0,
        "R draws both lengths evenly from L x (1 - R) to L x (1 + R).",
        bounds=Bounds(0, 1, excludes_high=True),
    )
    random_prefix_len: int = option(
        0, "Tokens that all random prompts begin with, before their own.", bounds=PREFIX_LENGTHS
    )
    prefix_repetition_prefix_len: int = option(
        256, "Tokens of a shared prefix.", bounds=PREFIX_LENGTHS
    )
    prefix_repetition_suffix_len: int = option(
        256, "Tokens of a prompt's own after it.", bounds=LENGTHS
    )
    prefix_repetition_num_prefixes: int = option(10, "Different prefixes.", bounds=COUNTS)
    prefix_repetition_output_len: int = option(
        128, "Tokens of an answer to such a prompt.", bounds=LENGTHS
    )
    sharegpt_output_len: int | None = option(
        None,
        "Tokens of an answer, instead of as many as the conversation's.",
        bounds=LENGTHS,
        shown_default="the conversation's",
    )
    custom_output_len: int = option(
        256,
        "Tokens of an answer; -1 takes 'output_tokens' of each line.",
        bounds=Bounds(-1, LENGTHS.high),
    )
    disable_shuffle: bool = option(False, "Take prompts of a file in its order.")
    no_oversample: bool = option(
        False, "Send fewer requests where a file has fewer prompts, instead of some again."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        has_file = self.dataset_name in (DatasetName.SHAREGPT, DatasetName.CUSTOM)
        if has_file != (self.dataset_path is not None):
            raise ConfigError(
                f"dataset_path: must be given with {DatasetName.SHAREGPT} and {DatasetName.CUSTOM} "
                f"alone, got {self.dataset_path or 'none'} with {self.dataset_name}"
            )
        if self.custom_output_len == 0:
            raise ConfigError("custom_output_len: must be at least 1, or -1, got 0")
