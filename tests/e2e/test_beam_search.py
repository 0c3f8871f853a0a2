"""Beam search through the cluster finds the texts and scores that transformers finds."""

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from quire import AsyncClient, SamplingParams
from quire.contract.outputs import Completion
from tests.e2e.conftest import StartCluster
from tests.e2e.served_model import VOCAB_SIZE, load_reference, save_served_model
from tests.factories import EOS_TOKEN_ID

WIDTH = 4
# Besides the end of text: many, so that texts of different lengths compete.
STOP_TOKEN_IDS = tuple(range(40, 460, 8))
SETTINGS = [
    SamplingParams(
        n=n,
        best_of=WIDTH,
        use_beam_search=True,
        temperature=0.0,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        stop_token_ids=stop_token_ids,
        max_tokens=20,
    )
    for n, length_penalty, early_stopping, stop_token_ids in (
        (4, 1.0, False, ()),
        (4, 1.0, False, STOP_TOKEN_IDS),
        (3, 1.0, True, STOP_TOKEN_IDS),
        (4, 2.0, "never", STOP_TOKEN_IDS),
        (2, 0.0, "never", STOP_TOKEN_IDS),
        (4, -1.0, False, STOP_TOKEN_IDS),
    )
]


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 16, 33)]


def transformers_beams(
    model: PreTrainedModel, prompt: list[int], params: SamplingParams
) -> list[tuple[tuple[int, ...], float]]:
    ends = {EOS_TOKEN_ID, *params.stop_token_ids}
    found = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        num_beams=params.width,
        num_return_sequences=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        max_new_tokens=params.max_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    beams = []
    for sequence, score in zip(found.sequences, found.sequences_scores, strict=True):
        output = sequence[len(prompt) :].tolist()
        end = next((i for i, token in enumerate(output) if token in ends), len(output) - 1)
        beams.append((tuple(output[: end + 1]), float(score)))
    return beams


def score(completion: Completion, length_penalty: float) -> float:
    assert completion.cumulative_logprob is not None
    return completion.cumulative_logprob / len(completion.token_ids) ** length_penalty


@pytest.mark.parametrize(
    "family", ["llama", "deepseek_v3", pytest.param("gpt2", marks=pytest.mark.deep)]
)
async def test_texts_and_scores_are_those_of_transformers(
    family: str, tmp_path: Path, start_cluster: StartCluster
) -> None:
    model = save_served_model(tmp_path / family, family)
    reference = load_reference(model)
    lengths = set()
    async with (
        start_cluster(model, dtype="float32", max_model_len=128) as cluster,
        AsyncClient(cluster.router.address) as client,
    ):
        for params in SETTINGS:
            for prompt in prompts():
                expected = transformers_beams(reference, prompt, params)
                found = await client.generate_all(prompt, params)
                assert [each.token_ids for each in found] == [tokens for tokens, _ in expected]
                assert [score(each, params.length_penalty) for each in found] == pytest.approx(
                    [score for _, score in expected], rel=1e-5
                )
                lengths.update(len(each.token_ids) for each in found)
    assert len(lengths) > 5, "stop tokens hardly mattered"
