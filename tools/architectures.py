"""Writes docs/models.md: how each causal architecture of the installed `transformers` is served.

Of each one a tiny random model is built by `transformers`, saved, and loaded as a worker does, in a
process of its own. Its kinds of layers are those of a published checkpoint where one is known, else
of the defaults of `transformers`. A native model's logits are compared with those of
`transformers`; the fallback compares them by itself before it serves.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.contract.errors import ModelLoadError
from quire.contract.workers import LoadSpec
from tools.published_configs import PUBLISHED
from worker_svc.loading.hf_config import HfConfig, one_line
from worker_svc.loading.loader import load_model
from worker_svc.models.fallback import FallbackForCausalLM
from worker_svc.models.probe import TOLERANCE, probe_inputs, relative_error, run_probe
from worker_svc.models.registry import find_family
from worker_svc.models.small_model import random_model, shrink
from worker_svc.parallel.group import ParallelGroup

PAGE = Path(__file__).resolve().parent.parent / "docs/models.md"
TIMEOUT_S = 120
REASON_CHARACTERS = 200

# Most tokens of a tiny model's windows.
WINDOW = 8
# What a tiny model needs beside that, by model type.
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_TWEAKS: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "cohere_compass_text": {"rope_parameters": {_SLIDING: _ROPE, _FULL: _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "ernie4_5_moe": {"moe_k": 2},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": [_SLIDING, _FULL] * 2},
    "gemma4_text": {"num_global_key_value_heads": 2},
    "granitemoehybrid": _MAMBA,
    "longcat_flash": {"qk_head_dim": 32},
    "mamba2": {"num_heads": 8},
}
# What every process needs, imported once.
_PRELOADED = [
    "worker_svc.loading.loader",
    "worker_svc.models.attention_interface",
    "worker_svc.models.experts_interface",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
]


class Outcome(StrEnum):
    """How an architecture is served."""

    NATIVE = "native"
    FALLBACK = "fallback"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        model_type: of config.json.
        architecture: the class of `transformers`.
        outcome: how it is served.
        reason: why not; empty for what is served.
        has_bits: whether it has a numerics id; False of what is not served.
    """

    model_type: str
    architecture: str
    outcome: Outcome
    reason: str = ""
    has_bits: bool = False

    @property
    def is_served(self) -> bool:
        """Whether it is loaded, and gives the logits of `transformers`."""
        return self.outcome in {Outcome.NATIVE, Outcome.FALLBACK}

    def __str__(self) -> str:
        reason = self.reason.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")
        bits = ("yes" if self.has_bits else "no") if self.is_served else ""
        published = PUBLISHED.get(self.model_type, "defaults")
        cells = (self.model_type, f"`{self.architecture}`", self.outcome, bits, published, reason)
        return f"| {' | '.join(map(str, cells))} |"


def tiny_config(model_type: str) -> Any:
    """Return the configuration of a model of a few layers and features, of published kinds."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    keys = PUBLISHED[model_type].keys if model_type in PUBLISHED else {}
    values = shrink(config_class(**keys).to_dict(), WINDOW) | _TWEAKS.get(model_type, {})
    if text := values.get("text_config"):
        values["text_config"] = text | _TWEAKS.get(text["model_type"], {})
    config = config_class(**values)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
    if hasattr(config, "is_decoder"):
        config.is_decoder, config.is_encoder_decoder = True, False
    return config


@torch.inference_mode()
def classify(model_type: str) -> Row:
    """Build a tiny random model, load it as a worker does, and return what came of it."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]

    def row(outcome: Outcome, reason: str = "", has_bits: bool = False) -> Row:
        reason = reason.removeprefix(f"architectures: {architecture} is not served: ")
        return Row(model_type, architecture, outcome, _cut(reason), has_bits)

    def unknown(error: Exception) -> Row:
        return row(Outcome.UNKNOWN, f"{type(error).__name__}: {one_line(error)}")

    with tempfile.TemporaryDirectory() as directory:

        def refused(error: ModelLoadError) -> Row:
            return row(Outcome.REFUSED, str(error).replace(f"{directory}/", ""))

        try:
            config = tiny_config(model_type)
            config.save_pretrained(directory)
        except Exception as error:  # whatever the configuration's own checks raise
            return unknown(error)
        hf = HfConfig.read(Path(directory) / "config.json")
        try:
            # Some are refused before there are weights, which may be hard to make.
            find_family(hf)[1].read(hf)
        except ModelLoadError as error:
            return refused(error)
        try:
            model = random_model(config)
            model.save_pretrained(directory)
        except Exception as error:  # whatever the model's own code raises
            return unknown(error)
        try:
            loaded = load_model(LoadSpec(directory), "tiny", ParallelGroup())
        except ModelLoadError as error:
            return refused(error)
        has_bits = bool(loaded.info.numerics_id)
        if isinstance(loaded.model, FallbackForCausalLM):
            return row(Outcome.FALLBACK, has_bits=has_bits)
        device = loaded.device.torch_device
        ids, _ = probe_inputs(loaded.info.vocab_size, device)
        logits = torch.cat([each for _, each in run_probe(loaded.model, loaded.dtype, device)])
        error_share = relative_error(logits, model(ids.unsqueeze(0)).logits[0])
        if not error_share <= TOLERANCE[loaded.dtype]:
            return row(Outcome.WRONG, f"its logits are off by {error_share:.1%}")
        return row(Outcome.NATIVE, has_bits=has_bits)


def _cut(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 3]}..."


def _send(model_type: str, sender: Connection) -> None:
    """Classify in a process whose output nobody reads."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    sender.send(classify(model_type))


def classify_apart(model_type: str) -> Row:
    """Classify in a process of its own, which may die or hang."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(model_type, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(TIMEOUT_S):
            row: Row = receiver.recv()
            return row
        reason = f"no answer within {TIMEOUT_S} s"
    except EOFError:
        process.join()
        reason = f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return Row(model_type, architecture, Outcome.UNKNOWN, reason)


def summary(rows: Iterable[Row]) -> str:
    """Return in one line how many of the architectures are served, and how."""
    rows = list(rows)
    served = sum(row.is_served for row in rows)
    with_bits = sum(row.has_bits for row in rows)
    native = sum(row.outcome is Outcome.NATIVE for row in rows)
    return f"served {served}, with bits {with_bits}, native {native} of {len(rows)}"


def page(rows: Iterable[Row]) -> str:
    """Return the page of a table of all architectures."""
    rows = sorted(rows, key=lambda row: row.model_type)
    counts = Counter(row.outcome for row in rows)
    published = sum(row.model_type in PUBLISHED for row in rows)
    return f"""# Models

How a worker serves each architecture of which transformers {transformers.__version__} has a causal
language model: {summary(rows)}.
`make architectures` writes this page: `transformers` builds a tiny random model of each in float32,
a worker loads it, and its logits are compared.

- **{Outcome.NATIVE}** ({counts[Outcome.NATIVE]}): a family of our own, on any number of workers.
- **{Outcome.FALLBACK}** ({counts[Outcome.FALLBACK]}): `transformers` runs it over the paged cache,
  on one worker.
- **{Outcome.REFUSED}** ({counts[Outcome.REFUSED]}): with the reason that the worker reports. Most
  do not let their attention be replaced, or keep something beside keys and values.
- **{Outcome.UNKNOWN}** ({counts[Outcome.UNKNOWN]}): no tiny model of it could be built.

**Bits** says whether the model has a numerics id: its tokens have the same bits alone, in company,
in chunks and when they are computed again ([numerics.md](numerics.md)). Of a model without one,
streams are not moved or resumed as equal.

**Layers of** names the checkpoint whose kinds of layers the tiny model has ({published} types):
windows, sparse attention, experts, states, latents, the scaling of positions. Behind it stands
where its configuration was read: a package of PyPI, a repository of GitHub, or the documentation of
`transformers`, which names kinds and not always their order. The other rows are made of the default
configuration of `transformers`, which may have kinds that no checkpoint has, and lack some that all
have. Each kind is there, but experts stand in one group; sizes, counts of experts and lengths of
windows are cut.

A model's own configuration decides too: a native family refuses switches that it does not serve by
name, and the fallback compares the logits of every model before it serves it. Encoders such as BERT
are taken as decoders here, `is_decoder: true`.

The fallback takes weights in float32, bfloat16 and float16, and refuses any `quantization_config`:
of gpt-oss, checkpoints in bfloat16 are served, and those in MXFP4 are not.

| model type | architecture | served | bits | layers of | why not |
|---|---|---|---|---|---|
""" + "".join(f"{row}\n" for row in rows)


def main() -> None:
    """Write the table, or print the rows of a few model types."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "model_types", nargs="*", help="print these rows only; none writes them all"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    arguments = parser.parse_args()
    types = arguments.model_types or list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    rows = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(classify_apart, types):
            print(row, flush=True)
            rows.append(row)
    print(summary(rows))
    if not arguments.model_types:
        PAGE.write_text(page(rows))
    if any(row.outcome is Outcome.WRONG for row in rows):
        raise SystemExit("a native family gives other logits than transformers")


if __name__ == "__main__":
    main()
