"""What asks for vectors, and what brings them."""

from array import array

from quire.contract.embeddings import Embeddings, EmbedInput
from quire.contract.pooling_params import PoolingParams
from quire.contract.sampling_params import SamplingParams
from quire.contract.sessions import Submission
from quire.wire import embeddings, scheduler
from tests.unit.quire.wire_example import Example


def vector_examples() -> list[Example]:
    request = embeddings.embed_input_to_proto, embeddings.embed_input_from_proto
    submission = scheduler.session_request_to_proto, scheduler.session_request_from_proto
    raw = PoolingParams(normalize=False, dimensions=7)
    return [
        Example(
            EmbedInput(["Hi", "you"], raw, "mine", "demo", 7, False, -3, "salt", True, True),
            *request,
        ),
        Example(EmbedInput([[5, 2**32 - 1]]), *request),
        Example(
            Embeddings(
                (array("f", [0.5, -0.25]), array("f", [2.0, 3.0])),
                (3, 1),
                "demo",
                "mine",
                "5f7a",
                ((5, 6, 7), (8,)),
            ),
            embeddings.embeddings_to_proto,
            embeddings.embeddings_from_proto,
        ),
        Example(Submission([5], SamplingParams(), pooling_params=PoolingParams()), *submission),
        Example(Submission([5], SamplingParams(), pooling_params=raw), *submission),
    ]
