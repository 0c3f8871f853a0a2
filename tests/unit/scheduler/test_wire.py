from dataclasses import replace

import pytest

from quire.contract.errors import InvalidRequestError, OverloadedError
from quire.contract.outputs import CellState, FinishReason, Hypothesis, TokenLogprobs
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Queued, Refused, StepOutputs
from quire.contract.steps import PromptLogprobs, SchedulerOutputs, SequenceState, StepResult
from quire.contract.time_breakdown import TimeBreakdown
from quire.v1 import common_pb2, scheduler_pb2, worker_pb2
from quire.wire.common import (
    sampling_params_from_proto,
    sampling_params_to_proto,
    time_breakdown_from_proto,
    token_logprobs_from_proto,
)
from quire.wire.worker import (
    execute_request_from_proto,
    execute_request_to_proto,
    execute_response_from_proto,
    execute_response_to_proto,
)
from router.wire import hypothesis_from_proto
from scheduler_svc.wire import session_event_to_proto, submission_from_proto

LOGPROBS = [TokenLogprobs((3, 8), (-0.5, -0.25), 2), TokenLogprobs()]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARAMS = SamplingParams(temperature=0.5, top_p=0.25, top_k=9, min_p=0.125, seed=2**64 - 1)


def test_orders_survive_the_wire() -> None:
    outputs = SchedulerOutputs(
        forks=[(5, 2**63), (6, 7)],
        chosen_tokens=[(5, 3), (2**63, 2**32 - 1)],
        released_sequence_ids=[2**63, 1],
        new_sequences=[SequenceState(5, 1, [7, 8, 9], 2, 2, [4, 3], PARAMS, 8, TRACEPARENT)],
        blocks_to_swap_out=[(3, 0)],
        blocks_to_swap_in=[(1, 7), (2, 8)],
        blocks_to_copy=[(1, 2), (2, 6)],
        replaced_blocks=[(5, 2, 6), (7, 0, 2)],
        sequence_ids=[5, 6],
        num_scheduled_tokens=[1, 300],
        num_new_blocks=[0, 2],
        new_block_ids=[2**32 - 1, 0],
        epoch=2**40,
        step_id=17,
        traceparent=TRACEPARENT,
    )
    sent = execute_request_to_proto(outputs).SerializeToString()
    assert execute_request_from_proto(worker_pb2.ExecuteRequest.FromString(sent)) == outputs


def test_a_decoding_step_has_not_a_byte_about_traces() -> None:
    step = SchedulerOutputs(
        sequence_ids=[5, 6], num_scheduled_tokens=[1, 1], num_new_blocks=[0, 0], epoch=1, step_id=2
    )
    sent = execute_request_to_proto(step).scheduler_outputs
    assert {field.name for field, _ in sent.ListFields()} == {
        "epoch",
        "step_id",
        "sequence_ids",
        "num_scheduled_tokens",
        "num_new_blocks",
    }


def test_workers_are_sent_only_what_a_sampler_reads() -> None:
    params = replace(PARAMS, max_tokens=5, stop=("secret",), stop_token_ids=(4,), ignore_eos=True)
    state = SequenceState(5, 0, (7,), 1, 0, (4,), params)
    outputs = SchedulerOutputs(new_sequences=[state])
    sent = execute_request_to_proto(outputs).scheduler_outputs.new_sequences[0]
    assert {field.name for field, _ in sent.sampling_params.ListFields()} == {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
    }


def test_what_changes_logits_is_sent_where_it_is_asked_for() -> None:
    params = replace(
        PARAMS,
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
    )
    outputs = SchedulerOutputs(new_sequences=[SequenceState(5, 0, (7,), 1, 0, (4,), params)])
    sent = execute_request_to_proto(outputs).scheduler_outputs.new_sequences[0]
    assert sent.num_prompt_tokens == 1
    assert sampling_params_from_proto(sent.sampling_params) == params


def test_a_result_survives_the_wire() -> None:
    result = StepResult(
        sequence_ids=[5, 6],
        token_ids=[7, 8],
        failed_sequence_ids=[9],
        logprobs=LOGPROBS,
        prompt_logprobs=[(5, PromptLogprobs(1, LOGPROBS))],
        epoch=3,
        step_id=4,
        model_us=10,
        sample_us=11,
        worker_us=12,
        swap_us=13,
    )
    sent = execute_response_to_proto(result).SerializeToString()
    assert execute_response_from_proto(worker_pb2.ExecuteResponse.FromString(sent)) == result


def test_a_submission_is_read_in_full() -> None:
    message = scheduler_pb2.SubmitRequest(
        request_number=1,
        request_id="r",
        prompt_token_ids=[2, 3],
        outputs=[
            scheduler_pb2.SequenceOutput(sequence_index=2, token_ids=[4]),
            scheduler_pb2.SequenceOutput(sequence_index=0),
        ],
        priority=-3,
        cache_salt="tenant",
        traceparent=TRACEPARENT,
        include_time_breakdown=True,
        sampling_params=sampling_params_to_proto(PARAMS),
    )
    submission = submission_from_proto(message, max_tokens=2)
    assert (submission.request_number, submission.request_id) == (1, "r")
    assert (submission.prompt_token_ids, submission.outputs) == ([2, 3], {2: [4], 0: []})
    assert (submission.priority, submission.cache_salt) == (-3, "tenant")
    assert (submission.traceparent, submission.include_time_breakdown) == (TRACEPARENT, True)
    assert submission.sampling_params == PARAMS


def output_of(token_ids: list[int]) -> scheduler_pb2.SequenceOutput:
    return scheduler_pb2.SequenceOutput(token_ids=token_ids)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (scheduler_pb2.SubmitRequest(prompt_token_ids=[1] * 11), "prompt"),
        (scheduler_pb2.SubmitRequest(outputs=[output_of([1] * 11)]), "output_token_ids"),
        (scheduler_pb2.SubmitRequest(prompt_token_ids=[1], outputs=[output_of([1])]), "seed"),
        (
            scheduler_pb2.SubmitRequest(sampling_params=common_pb2.SamplingParams(min_p=2)),
            "min_p",
        ),
    ],
)
def test_a_bad_submission_names_its_field(message: scheduler_pb2.SubmitRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        submission_from_proto(message, max_tokens=10)
    assert caught.value.field == field


def test_session_events_become_their_messages() -> None:
    found = Hypothesis((3, 4), -1.5, FinishReason.LENGTH, tuple(LOGPROBS))
    step = session_event_to_proto(
        StepOutputs(
            request_numbers=[1, 2],
            sequence_indices=[0, 3],
            token_ids=[3, 4],
            finished_request_numbers=[2, 5],
            finished_sequence_indices=[3, 0],
            finish_reasons=[FinishReason.STOP, FinishReason.ABORT],
            logprobs=LOGPROBS,
            hypotheses=[(6, [found])],
            prompt_logprobs=[(7, PromptLogprobs(5, LOGPROBS))],
            time_breakdowns=[(2, TimeBreakdown(total_us=2**40, decode_us=2**40))],
        )
    ).step_outputs
    assert list(map(token_logprobs_from_proto, step.logprobs)) == LOGPROBS
    assert list(step.request_numbers) == [1, 2]
    assert list(step.sequence_indices) == [0, 3]
    assert list(step.token_ids) == [3, 4]
    assert list(step.finished_request_numbers) == [2, 5]
    assert list(step.finished_sequence_indices) == [3, 0]
    assert list(step.finish_reasons) == [
        common_pb2.FINISH_REASON_STOP,
        common_pb2.FINISH_REASON_ABORT,
    ]
    (timed,) = step.time_breakdowns
    assert timed.request_number == 2
    assert time_breakdown_from_proto(timed.time_breakdown) == TimeBreakdown(2**40, decode_us=2**40)
    (beams,), (prompt,) = step.beam_outputs, step.prompt_logprobs
    assert beams.request_number == 6
    assert hypothesis_from_proto(beams.hypotheses[0]) == found
    assert (prompt.request_number, prompt.first_position) == (7, 5)
    assert list(map(token_logprobs_from_proto, prompt.logprobs)) == LOGPROBS


def test_indices_are_left_out_where_each_request_has_one_sequence() -> None:
    step = session_event_to_proto(
        StepOutputs([1, 2], [0, 0], [3, 4], [2], [0], [FinishReason.STOP])
    ).step_outputs
    assert not step.sequence_indices
    assert not step.finished_sequence_indices


def test_other_session_events_become_their_messages() -> None:
    admitted = session_event_to_proto(Queued(6, seed=7)).admitted
    assert (admitted.request_number, admitted.seed) == (6, 7)
    assert session_event_to_proto(CellState(epoch=8)).cell_state.epoch == 8


def test_refusals_say_whether_to_come_back() -> None:
    full = session_event_to_proto(Refused(1, OverloadedError("full", 250))).refused
    assert full.reason == scheduler_pb2.REFUSAL_REASON_QUEUE_FULL
    assert (full.message, full.retry_after_ms, full.field) == ("full", 250, "")
    bad = session_event_to_proto(Refused(2, InvalidRequestError("prompt", "too long"))).refused
    assert bad.reason == scheduler_pb2.REFUSAL_REASON_INVALID
    assert (bad.message, bad.retry_after_ms, bad.field) == ("too long", 0, "prompt")
