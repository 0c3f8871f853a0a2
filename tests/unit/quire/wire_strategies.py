"""Random domain objects of common.proto."""

from dataclasses import fields

from hypothesis import strategies as st

from quire.contract.outputs import CellState, ModelInfo, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.time_breakdown import TimeBreakdown

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)

sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    top_p=st.floats(0, 1, width=32, exclude_min=True),
    top_k=st.none() | st.integers(1, 2**31 - 1),
    min_p=st.floats(0, 1, width=32),
    seed=st.none() | u64,
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    repetition_penalty=st.floats(0, 100, width=32, exclude_min=True),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100, width=32)),
    allowed_token_ids=ids,
    max_tokens=st.none() | st.integers(9, 2**31 - 1),
    min_tokens=st.integers(0, 9),
    logprobs=st.none() | st.integers(0, 20),
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=4).map(tuple),
    stop_token_ids=ids,
    ignore_eos=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
)
model_infos = st.builds(
    ModelInfo,
    name=st.text(max_size=8),
    architecture=st.text(max_size=8),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    vocab_size=u32,
    max_model_len=u32,
    eos_token_ids=ids,
    num_parameters=u64,
    numerics_id=st.text(max_size=8),
    text_id=st.text(max_size=8),
)
_FLAGS = ("draining", "workers_lost", "moving")
# Some of the fields are 32 bits wide on the wire.
cell_states = st.builds(
    CellState,
    **{field.name: u32 for field in fields(CellState) if field.name not in _FLAGS},
    **dict.fromkeys(_FLAGS, st.booleans()),
)
token_logprobs = st.builds(
    TokenLogprobs,
    ids,
    st.lists(st.floats(-1e6, 0, width=32), max_size=5).map(tuple),
    u32,
    st.lists(st.text(max_size=5), max_size=5).map(tuple),
)
time_breakdowns = st.builds(TimeBreakdown, **{field.name: u64 for field in fields(TimeBreakdown)})
