"""The part of a request's sampling parameters that a scheduler reads."""

import dataclasses

from quire.contract.sampling_params import SamplingParams


def scheduler_params(params: SamplingParams) -> SamplingParams:
    """Return sampling parameters without the fields that only the router reads."""
    params = dataclasses.replace(
        params,
        stop=(),
        include_stop_str_in_output=False,
        skip_special_tokens=True,
        spaces_between_special_tokens=True,
        bad_words=(),
        truncate_prompt_tokens=None,
        truncate_right=False,
    )
    if params.width > params.n and params.logprobs is None:
        return dataclasses.replace(params, logprobs=0)  # to rank the outputs by
    return params
