r"""Train the demo model that ships in ``quire/demo_model`` (about 40 minutes on two cores).

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 \
        python -m tools.train_demo_model --minutes 40

The two variables keep glibc from returning the large activations to the kernel at every step,
which is worth a quarter of the speed. The corpus, the tokenizer and the order of the batches
are the same in every run; the weights are not, since the clock decides the number of steps.
"""

import argparse
import itertools
import json
import math
import platform
import random
import shutil
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch.nn import functional
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.demo_corpus import VOCAB_SIZE, Corpus, build_corpus, encode, train_tokenizer

MAX_POSITIONS = 1024
TOKENS_PER_STEP = 2048
# One batch in four reaches the last position, so that the limit in config.json is a trained one.
WINDOW_LENGTHS = (512, 512, 512, MAX_POSITIONS)
PEAK_LR, FINAL_LR_SHARE, WARM_UP_SHARE = 6e-3, 0.02, 0.02
EVAL_EVERY, SAVE_EVERY = 200, 400
PROMPTS = (
    "The list class",
    "Return a copy of the string",
    "A function definition",
    "The with statement",
    "Raises ValueError if",
    "This module provides",
)
CARD = Path(__file__).with_name("demo_model_card.md")


@dataclass(slots=True)
class Progress:
    """Where a training run stands; saved with its weights."""

    step: int = 0
    epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    train_loss: float = math.inf
    held_out_loss: float = math.inf


def build_model(hidden_size: int, num_layers: int) -> LlamaForCausalLM:
    """Return the model with fresh fp32 weights; its heads divide by a tensor-parallel 2 or 4."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 11 // 4,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=True,
    )
    return LlamaForCausalLM(config)


def batches(documents: list[list[int]]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield (epoch, inputs, targets) without end, reshuffling the documents at each epoch.

    Inputs and targets are [windows, length] int64; the targets are one token ahead.
    """
    lengths = itertools.cycle(WINDOW_LENGTHS)
    for epoch in itertools.count():
        order = documents.copy()
        random.Random(epoch).shuffle(order)
        stream = torch.tensor(list(itertools.chain.from_iterable(order)))
        for start in range(0, len(stream) - TOKENS_PER_STEP, TOKENS_PER_STEP):
            length = next(lengths)
            chunk = stream[start : start + TOKENS_PER_STEP + 1]
            yield epoch, chunk[:-1].view(-1, length), chunk[1:].view(-1, length)


def loss_of(model: LlamaForCausalLM, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, in nats a token; products in bf16, the loss in fp32."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=inputs, use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, documents: list[list[int]]) -> float:
    """Return the mean loss over the held-out documents, in windows of 512."""
    stream = torch.tensor(list(itertools.chain.from_iterable(documents)))
    windows = stream[: (len(stream) - 1) // 512 * 512 + 1]
    inputs, targets = windows[:-1].view(-1, 512), windows[1:].view(-1, 512)
    parts = zip(inputs.split(8), targets.split(8), strict=True)  # type: ignore[no-untyped-call]
    return sum(loss_of(model, x, y).item() * len(x) for x, y in parts) / len(inputs)


def learning_rate(progress: float) -> float:
    """Return the rate at a share of the run in [0, 1]: linear warm-up, then a cosine."""
    if progress < WARM_UP_SHARE:
        return PEAK_LR * max(progress / WARM_UP_SHARE, 0.01)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return PEAK_LR * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for embeddings and gains.

    A run of minutes sees few tokens, so what counts is what each of them teaches: in 100 s runs
    Muon reached a held-out loss of 5.08 where AdamW alone stayed at 5.65 at best.
    """
    layers = [p for p in model.model.layers.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if all(p is not q for q in layers)]
    return [
        torch.optim.Muon(layers, PEAK_LR, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def save_checkpoint(model: LlamaForCausalLM, at: Progress, path: Path) -> None:
    """Write weights, and where the run stands."""
    save_model(model, str(path), metadata={"progress": json.dumps(asdict(at))})


def load_checkpoint(model: LlamaForCausalLM, path: Path) -> Progress:
    """Read what `save_checkpoint` wrote.

    Mutates: model.
    """
    load_model(model, path)
    with safe_open(path, framework="pt") as file:
        return Progress(**json.loads(file.metadata()["progress"]))


def train(
    model: LlamaForCausalLM,
    documents: list[list[int]],
    held_out: list[list[int]],
    minutes: float,
    work: Path,
) -> None:
    """Train until the budget is spent, keeping the ``last`` and the ``best`` weights in ``work``.

    Args:
        model: mutated.
        documents: tokens of each training document.
        held_out: tokens of each document that only measures.
        minutes: wall-clock budget.
        work: folder of the checkpoints.
    """
    optimizers = build_optimizers(model)
    at, best_loss = Progress(), math.inf
    budget = minutes * 60
    began = time.monotonic()
    recent: list[float] = []
    model.train()
    for epoch, inputs, targets in batches(documents):
        for group in itertools.chain.from_iterable(o.param_groups for o in optimizers):
            group["lr"] = learning_rate(at.seconds / budget)
        loss = loss_of(model, inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        recent = [*recent[1 - EVAL_EVERY :], loss.item()]
        at.step, at.epoch, at.tokens = at.step + 1, epoch, at.tokens + inputs.numel()
        at.seconds = time.monotonic() - began
        done = at.seconds >= budget
        if at.step % 20 == 0:
            speed = at.tokens / at.seconds
            print(
                f"step {at.step} epoch {epoch} loss {sum(recent) / len(recent):.3f}"
                f" {speed:.0f} tokens/s ETA {max(0.0, budget - at.seconds) / 60:.1f} min",
                flush=True,
            )
        if done or at.step % EVAL_EVERY == 0:
            at.train_loss = sum(recent) / len(recent)
            at.held_out_loss = evaluate(model, held_out)
            print(f"step {at.step} held-out loss {at.held_out_loss:.3f}", flush=True)
            if at.held_out_loss < best_loss:
                best_loss = at.held_out_loss
                save_checkpoint(model, at, work / "best.safetensors")
            if done or at.step % SAVE_EVERY == 0:
                save_checkpoint(model, at, work / "last.safetensors")
        if done:
            return


def export(
    model: LlamaForCausalLM, at: Progress, corpus: Corpus, corpus_tokens: int, out: Path
) -> None:
    """Write weights, configurations, README and licence; the model is left in bf16."""
    parameters = model.num_parameters()
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=0, eos_token_id=0, pad_token_id=0, do_sample=True, temperature=0.8
    )
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    shutil.copyfile(Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", out / "LICENSE")
    figures = CARD.read_text(encoding="utf-8").format(
        parameters=parameters / 1e6,
        hidden_size=model.config.hidden_size,
        layers=model.config.num_hidden_layers,
        head_size=model.config.hidden_size // model.config.num_attention_heads,
        intermediate_size=model.config.intermediate_size,
        positions=MAX_POSITIONS,
        vocab=VOCAB_SIZE,
        megabytes=(out / "model.safetensors").stat().st_size / 1e6,
        documents=len(corpus.train) + len(corpus.held_out),
        corpus_bytes=corpus.n_bytes,
        corpus_tokens=corpus_tokens,
        steps=at.step,
        tokens=at.tokens / 1e6,
        epochs=at.tokens / corpus_tokens,
        minutes=at.seconds / 60,
        train_loss=at.train_loss,
        held_out_loss=at.held_out_loss,
        python=platform.python_version(),
    )
    (out / "README.md").write_text(figures, encoding="utf-8")


def show_samples(out: Path) -> None:
    """Print what the exported folder continues, read back as a user of it would."""
    tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=False)
    model = LlamaForCausalLM.from_pretrained(out)
    torch.manual_seed(0)
    for prompt, sampled in itertools.product(PROMPTS, (False, True)):
        ids = tokenizer(prompt, return_tensors="pt")
        how = {"do_sample": True, "temperature": 0.8} if sampled else {"do_sample": False}
        text = tokenizer.decode(model.generate(**ids, max_new_tokens=80, **how)[0])  # type: ignore[misc]
        print(f"--- {'temperature 0.8' if sampled else 'greedy'}\n{text}\n")


def main() -> None:
    """Read the command line; train unless told only to export, then export and sample."""
    parser = argparse.ArgumentParser(description="Train and export the demo model.")
    parser.add_argument("--minutes", type=float, default=40.0, help="wall-clock budget")
    parser.add_argument("--hidden-size", type=int, default=256, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--export-only", action="store_true", help="export a checkpoint")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="last")
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--out", type=Path, default=Path("quire/demo_model"))
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(2)
    args.work.mkdir(parents=True, exist_ok=True)
    corpus = build_corpus()
    tokenizer = train_tokenizer(corpus, MAX_POSITIONS)
    documents, held_out = encode(tokenizer, corpus.train), encode(tokenizer, corpus.held_out)
    corpus_tokens = sum(map(len, documents))
    model = build_model(args.hidden_size, args.layers)
    print(f"{corpus.n_bytes} bytes, {corpus_tokens} tokens, {model.num_parameters()} parameters")
    if not args.export_only:
        train(model, documents, held_out, args.minutes, args.work)
    at = load_checkpoint(model, args.work / f"{args.checkpoint}.safetensors")
    tokenizer.save_pretrained(args.out)
    export(model, at, corpus, corpus_tokens, args.out)
    show_samples(args.out)


if __name__ == "__main__":
    main()
