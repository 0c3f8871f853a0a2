"""Domain objects every field of which differs from what an absent one is read as."""

from dataclasses import fields, replace

from quire.contract.outputs import (
    CellState,
    FinishReason,
    Hypothesis,
    ModelInfo,
    TokenLogprobs,
)
from quire.contract.pooling_params import PoolingParams
from quire.contract.quotas import Quotas
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import (
    StepOutputs,
    Submission,
)
from quire.contract.steps import (
    PromptLogprobs,
    SchedulerOutputs,
    SequenceState,
    StepResult,
)
from quire.contract.structured_outputs import StructuredOutputsParams
from quire.contract.time_breakdown import TimeBreakdown

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EPOCH = 2**40
MODEL = ModelInfo(
    "demo",
    "LlamaForCausalLM",
    "bfloat16",
    2**17,
    2**15,
    (1, 2),
    2**40,
    "5f7a",
    "ac14",
    "w8a8",
    64,
    True,
    (16, 32),
    True,
    ("demo-2", "a/b"),
)
STATE = CellState(
    **{each.name: 2 + index for index, each in enumerate(fields(CellState))}
    | {"draining": True, "workers_lost": True, "moving": True}
)
TIME = TimeBreakdown(
    **{each.name: 2**33 + index for index, each in enumerate(fields(TimeBreakdown))}
)
LOGPROBS = [TokenLogprobs((3, 8), (-0.5, -0.25), 2, ("a", "\ufffd")), TokenLogprobs()]
PROMPT_LOGPROBS = PromptLogprobs(7, LOGPROBS)
HYPOTHESIS = Hypothesis((3, 4), -1.5, FinishReason.LENGTH, tuple(LOGPROBS))
# What a worker's sampler reads.
SAMPLED = SamplingParams(
    temperature=0.5,
    top_p=0.25,
    top_k=9,
    min_p=0.125,
    seed=2**64 - 1,
    presence_penalty=0.5,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    logit_bias={7: -3.0},
    allowed_token_ids=(7, 8),
    min_tokens=2,
    logprobs=3,
    prompt_logprobs=2,
    bad_words_token_ids=((5, 6), (7,)),
    stop_token_ids=(4,),
    ignore_eos=True,
    max_tokens=None,
)
# The same with a grammar, which goes without ignore_eos.
STRUCTURED = [
    replace(SAMPLED, ignore_eos=False, structured_outputs=grammar)
    for grammar in (
        StructuredOutputsParams(json={"type": "integer"}),
        StructuredOutputsParams(json_object=True),
        StructuredOutputsParams(regex="a+"),
        StructuredOutputsParams(choice=("yes", "no")),
        StructuredOutputsParams(grammar='start: "a"'),
        StructuredOutputsParams(structural_tag={"format": {"type": "any_text"}}),
    )
]
PARAMS = replace(
    SAMPLED,
    n=2,
    best_of=3,
    bad_words=("bad",),
    max_tokens=9,
    stop=("\n\n",),
    include_stop_str_in_output=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    truncate_prompt_tokens=5,
    truncate_right=True,
)
BEAMS = SamplingParams(
    n=2, use_beam_search=True, temperature=0.0, length_penalty=0.5, early_stopping="never"
)
SUBMISSION = Submission(
    prompt_token_ids=[5, 6],
    sampling_params=PARAMS,
    outputs={0: [7], 2: []},
    request_number=1,
    request_id="mine",
    priority=-3,
    cache_salt="tenant",
    traceparent=TRACEPARENT,
    include_time_breakdown=True,
    deadline_ms=1500,
    tenant="alice",
    tenant_weight=2.5,
    was_queued=True,
    suspect_until=3,
    num_lost_alone=1,
    quotas=Quotas(60, 10_000, 4),
    num_cells=3,
    block_source=("host:1", "host:2"),
)
ORDERS = SchedulerOutputs(
    forks=[(5, 2**63), (6, 7)],
    chosen_tokens=[(5, 3), (2**63, 2**32 - 1)],
    released_sequence_ids=[2**63, 1],
    new_sequences=[
        SequenceState(5, 1, [7, 8, 9], 2, 2, [4, 3], SAMPLED, 8, TRACEPARENT, b"salt"),
        *(SequenceState(6, 1, [7, 8], 2, 1, [5], params) for params in STRUCTURED),
        *(
            SequenceState(7, 0, [7, 8], 2, 1, [5], SAMPLED, pooling_params=pooling)
            for pooling in (PoolingParams(), PoolingParams(False, 7))
        ),
    ],
    blocks_to_swap_out=[(3, 0)],
    blocks_to_swap_in=[(1, 7), (2, 8)],
    blocks_to_copy=[(1, 2), (2, 6)],
    replaced_blocks=[(5, 2, 6), (7, 0, 2)],
    sequence_ids=[5, 6],
    num_scheduled_tokens=[1, 300],
    num_new_blocks=[0, 2],
    new_block_ids=[2**32 - 1, 0],
    num_draft_slots=[2, 0],
    epoch=EPOCH,
    step_id=17,
    traceparent=TRACEPARENT,
)
RESULT = StepResult(
    sequence_ids=[5, 6],
    token_ids=[7, 8],
    failed_sequence_ids=[9],
    logprobs=LOGPROBS,
    prompt_logprobs=[(5, PROMPT_LOGPROBS)],
    num_draft_tokens=[3, 0],
    vectors=[(9, bytes(8)), (2**63, b"")],
    barred_sequence_ids=[9],
    epoch=EPOCH,
    step_id=17,
    model_us=10,
    sample_us=11,
    worker_us=12,
    swap_us=13,
)
STEP_OUTPUTS = StepOutputs(
    request_numbers=[1, 2],
    sequence_indices=[0, 3],
    token_ids=[3, 4],
    finished_request_numbers=[2, 5],
    finished_sequence_indices=[3, 0],
    finish_reasons=[FinishReason.STOP, FinishReason.ABORT],
    logprobs=LOGPROBS,
    hypotheses=[(6, [HYPOTHESIS])],
    prompt_logprobs=[(7, PROMPT_LOGPROBS)],
    time_breakdowns=[(2, TIME)],
    vectors=[(5, bytes(8)), (2, b"")],
    cached_tokens=[(1, 16), (2, 32)],
)
