"""What orders leave out, and what they do with arrays that do not fit together."""

from dataclasses import replace
from typing import Any

import pytest

from quire.contract.engine_options import CacheOptions, LoadOptions
from quire.contract.errors import InvalidRequestError
from quire.contract.options import options_of
from quire.contract.sampling_params import SamplingParams
from quire.contract.steps import SchedulerOutputs, SequenceState, StepResult
from quire.contract.workers import CacheSpec, LoadSpec, Meeting
from quire.v1 import worker_pb2
from quire.wire import worker as wire
from quire.wire.caches import cache_spec_from_proto

PARAMS = SamplingParams(
    temperature=0.5, top_p=0.25, top_k=9, min_p=0.125, seed=2**64 - 1, max_tokens=None
)


def test_a_decoding_step_has_not_a_byte_about_traces() -> None:
    step = SchedulerOutputs(
        sequence_ids=[5, 6], num_scheduled_tokens=[1, 1], num_new_blocks=[0, 0], epoch=1, step_id=2
    )
    sent = wire.scheduler_outputs_to_proto(step)
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
    sent = wire.scheduler_outputs_to_proto(outputs).new_sequences[0]
    assert {field.name for field, _ in sent.sampling_params.ListFields()} == {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
    }


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (worker_pb2.SchedulerOutputs(forks=[1, 2, 3]), "forks"),
        (worker_pb2.SchedulerOutputs(blocks_to_copy=[1]), "blocks_to_copy"),
        (worker_pb2.SchedulerOutputs(chosen_sequence_ids=[1]), "chosen_token_ids"),
        (
            worker_pb2.SchedulerOutputs(replaced_sequence_ids=[1], replaced_places=[2]),
            "replaced_block_ids",
        ),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    message: worker_pb2.SchedulerOutputs, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        wire.scheduler_outputs_from_proto(message)
    assert caught.value.field == field


def test_what_a_scheduler_leaves_out_takes_its_default() -> None:
    load = wire.load_request_from_proto(worker_pb2.LoadModelRequest(model="/m"))
    assert (load.spec, load.meeting) == (LoadSpec("/m"), Meeting(host=""))
    cache = worker_pb2.InitCacheRequest(num_blocks=32)
    assert cache_spec_from_proto(cache) == CacheSpec(32)


@pytest.mark.parametrize(
    ("group", "message"),
    [(LoadOptions, worker_pb2.LoadOptions), (CacheOptions, worker_pb2.CacheOptions)],
)
def test_every_option_of_a_worker_has_a_field_that_can_be_absent(group: type, message: Any) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    assert set(fields) == set(options_of(group))
    # Else a value of zero would read as the default.
    assert all(field.has_presence for field in fields.values())


def test_times_too_long_for_the_message_are_the_longest_it_holds() -> None:
    sent = wire.step_result_to_proto(StepResult((), (), model_us=2**40, swap_us=2**32))
    assert (sent.model_us, sent.swap_us) == (2**32 - 1, 2**32 - 1)
