"""Requests for a scheduler over fake workers, and the tokens that they must get."""

import random

from quire.contract.sampling_params import SamplingParams
from tests.fakes.fake_model import fake_generate
from tests.fakes.fake_worker import FAKE_MODEL


def reference(prompt: list[int], params: SamplingParams, max_model_len: int = 256) -> list[int]:
    return fake_generate(
        prompt,
        params,
        vocab_size=FAKE_MODEL.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=FAKE_MODEL.eos_token_ids,
    )


def make_requests(count: int, max_tokens: int = 20) -> dict[int, tuple[list[int], SamplingParams]]:
    rng = random.Random(count)
    return {
        number: (
            [rng.randrange(FAKE_MODEL.vocab_size) for _ in range(rng.randint(1, 24))],
            SamplingParams(temperature=number % 2, seed=rng.getrandbits(64), max_tokens=max_tokens),
        )
        for number in range(1, count + 1)
    }


LONG = SamplingParams(seed=1, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(seed=1, max_tokens=3, ignore_eos=True)
