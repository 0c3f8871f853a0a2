"""The machine code of every kernel, for every architecture that is served."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.emu.test_depth import COLUMNS, SHAPES
from tests.machine_code import statements
from tests.machine_code.compiled import (
    COMPUTE,
    LET_NEXT_START,
    SOURCES,
    WAIT_FOR_EARLIER,
    Kernel,
    compile_all,
    version,
)
from tests.machine_code.statements import SharedBytes
from tests.nvcc import PINNED

# The oldest and the one with the most instructions: between them each branch of the sources is
# compiled, e4m3's too. Each other takes minutes of two cores, and runs in make test-nightly.
IN_EVERY_RUN = (80, 90)
PINNED_VERSION = "13.0.88"
# A device that has as much shared memory.
DEVICES = {80: "A100", 86: "L4", 89: "L4", 90: "H100", 100: "B200", 120: "4090"}
LATENT_HEAD = 576
# Instructions of a tile of 16 keys: decode of bfloat16, heads of 128, 8 columns.
DECODE = "attention_mma_kernel<bf16, bf16, 128, 1, {}>"
MOST_OF_DECODE = 420
# Of prompts on warpgroups: tiles, and registers of three threads, of which one copies.
TILES_OF_STAGE = 4
SHARED_REGISTERS = 24 + 2 * 240

# Bytes of shared memory that launch.h takes without asking, and that there are.
WITHOUT_ASKING, MOST_WITHOUT_ASKING = 32 << 10, 48 << 10

pytestmark = [
    # Compiling every kernel takes what lanes beside it leave; the time of the whole run bounds it.
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.parametrize(
        "architecture",
        [
            pytest.param(each, marks=() if each in IN_EVERY_RUN else pytest.mark.deep)
            for each in COMPUTE
        ],
    ),
]


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """Skip where there is none; refuse another than the one whose code is stated."""
    try:
        found = version()
    except LookupError as error:
        pytest.skip(str(error))
    assert found == PINNED_VERSION, f"{found} is not what pyproject.toml pins, in {PINNED}"


@pytest.fixture(scope="module")
def shared_bytes(tmp_path_factory: pytest.TempPathFactory) -> SharedBytes:
    return SharedBytes(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def kernels(architecture: int) -> dict[str, list[Kernel]]:
    """By source."""
    return {source: found for (source, _), found in compile_all([architecture]).items()}


def each_of(kernels: dict[str, list[Kernel]], *prefixes: str) -> Iterator[Kernel]:
    """The kernels of sources under some folders."""
    for source, found in kernels.items():
        if source.startswith(prefixes):
            yield from found


def test_every_kernel_lives_in_registers(kernels: dict[str, list[Kernel]]) -> None:
    """Nothing is spilt, and no array is indexed by what is not known."""
    assert kernels.keys() == {*SOURCES}
    everything = [*each_of(kernels, "")]
    assert len(everything) > 200
    for kernel in everything:
        assert kernel.spilt_bytes == 0, kernel.name
        assert kernel.stack_bytes == 0, kernel.name
        local = [each for each in kernel.opcodes if each.partition(".")[0] in ("STL", "LDL")]
        assert not local, kernel.name


def test_shared_memory_adds_by_an_instruction(kernels: dict[str, list[Kernel]]) -> None:
    """Of 64 bits it would add in a loop, which threads that meet run through one by one."""
    adding = 0
    for kernel in each_of(kernels, ""):
        atomics = [each for each in kernel.opcodes if each.startswith("ATOMS")]
        assert not [each for each in atomics if "CAS" in each], kernel.name
        adding += any(each.startswith("ATOMS") for each in atomics)
    assert adding >= 3  # sampler, top log-probabilities, penalties


def test_kernels_that_overlap_await_the_one_before(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    """Whatever the assembler has moved: no global memory is touched before."""
    for kernel in each_of(kernels, ""):
        number = [kernel.opcodes.get(each, 0) for each in (WAIT_FOR_EARLIER, LET_NEXT_START)]
        if architecture < 90:
            assert number == [0, 0], kernel.name
        else:
            assert (number, kernel.at_once) == ([1, 1], []), kernel.name


def test_flags_of_peers_are_ordered_for_all_devices(kernels: dict[str, list[Kernel]]) -> None:
    """What a block has written is there before its flag; nothing read behind one is old."""
    summing = [*each_of(kernels, "cuda/peers/peer_sum")]
    assert len(summing) == 9
    for kernel in summing:
        barriers, stores = kernel.opcodes["MEMBAR.ALL.SYS"], kernel.opcodes["STG.E.STRONG.SYS"]
        assert barriers == stores == 2, kernel.name  # a flag, and the report of a failure
        assert kernel.opcodes["CCTL.IVALL"] > 0, kernel.name
        assert kernel.opcodes["LDG.E.STRONG.SYS"] >= 3, kernel.name


def test_shared_memory_that_nothing_asks_for_is_there(
    kernels: dict[str, list[Kernel]], shared_bytes: SharedBytes
) -> None:
    """What a kernel has itself counts with what its launch takes without asking (launch.h)."""
    for kernel in each_of(kernels, "cuda"):
        if 0 < shared_bytes.of(kernel) <= WITHOUT_ASKING:
            assert kernel.shared_bytes <= MOST_WITHOUT_ASKING - WITHOUT_ASKING, kernel.name


def test_tiles_are_copied_16_bytes_at_a_time(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    copying = 0
    for kernel in each_of(kernels, "cuda/"):
        copies = [each for each in kernel.opcodes if each.startswith("LDGSTS")]
        assert all(each.endswith(".128") for each in copies), kernel.name
        copying += bool(copies)
        if kernel.name.startswith(
            (
                "attention_mma_kernel",
                "attention_latent_kernel",
                "attention_prompt_kernel",
                "attention_shared_kernel",
            )
        ):
            assert copies, kernel.name
        if kernel.name.startswith("warpgroup_"):
            assert bool(copies) == (architecture == 90), kernel.name
        if kernel.name.startswith("linear_kernel"):
            is_aligned = ">, true" in kernel.name
            assert bool(copies) == is_aligned, kernel.name
    assert copying > 50


def multiplying(architecture: int, kernels: dict[str, list[Kernel]], name: str) -> list[Kernel]:
    """Linear layers by warpgroups, for which only sm_90 has code."""
    found = [each for each in each_of(kernels, "cuda/linear") if each.name.startswith(name)]
    assert len(found) == 24
    if architecture == 90:
        return found
    assert all(statements.is_empty(each) for each in found)
    return []


def test_warpgroups_multiply_side_by_side(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    """A step is four products, which the assembler waits for no more often than we do."""
    for kernel in multiplying(architecture, kernels, "warpgroup_linear_kernel"):
        loop: Counter[str] = Counter()
        for opcode, number in kernel.hot_loop.items():
            loop[opcode.partition(".")[0]] += number
        assert loop["HGMMA"] == 4, kernel.name
        assert loop["WARPGROUP"] == 2, kernel.name  # where they begin, and the wait


def test_dequantised_weights_are_multiplied_side_by_side(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    """A step is four products from registers, which are waited for twice."""
    for kernel in multiplying(architecture, kernels, "warpgroup_weight_only_kernel"):
        loop = kernel.hot_loop
        assert sum(n for each, n in loop.items() if each.startswith("HGMMA")) == 4, kernel.name
        assert sum(n for each, n in loop.items() if each.startswith("WARPGROUP.DEPBAR")) == 2
        assert sum(n for each, n in loop.items() if each.startswith("WARPGROUP.ARRIVE")) <= 4


def test_prompts_on_warpgroups_multiply_side_by_side(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    """A stage is a product of queries for each 16 elements, and one of values for each tile."""
    found = [
        each
        for each in each_of(kernels, "cuda/attention")
        if each.name.startswith(("warpgroup_prompt_kernel", "warpgroup_shared_kernel"))
    ]
    assert len(found) == 8
    for kernel in found:
        if architecture != 90:
            assert statements.is_empty(kernel), kernel.name
            continue
        head_size = int(kernel.name.rsplit(", ", 1)[1].rstrip(">"))
        for opcodes in (kernel.hot_loop, kernel.opcodes):
            products = {each: n for each, n in opcodes.items() if each.startswith("HGMMA")}
            assert sum(products.values()) == head_size // 16 + TILES_OF_STAGE, kernel.name
            # Where they begin, and the waits: once for queries, and for each tile of values.
            waits = [n for each, n in opcodes.items() if each.startswith("WARPGROUP")]
            assert sum(waits) == 2 * (1 + TILES_OF_STAGE), kernel.name
        # All that a block begins with is shared out, and no more.
        assert 3 * kernel.registers == SHARED_REGISTERS, kernel.name
        assert sum(n for each, n in kernel.opcodes.items() if "USETMAXREG" in each) == 2


def test_a_tile_of_decode_takes_few_instructions(
    architecture: int, kernels: dict[str, list[Kernel]]
) -> None:
    for stages in (2, 3):
        (kernel,) = (
            each
            for each in each_of(kernels, "cuda/attention/mma.cu")
            if each.name == DECODE.format(stages)
        )
        assert sum(kernel.hot_loop.values()) <= MOST_OF_DECODE


def test_the_page_states_what_there_is(
    architecture: int, kernels: dict[str, list[Kernel]], shared_bytes: SharedBytes
) -> None:
    """`python -m tests.machine_code` prints the table of docs/gpu-code.md."""
    compiled = {(source, architecture): found for source, found in kernels.items()}
    found = statements.rows(compiled, shared_bytes)
    stated = statements.stated()
    assert stated.keys() == found.keys() == {*statements.STATED}
    for name, cells in found.items():
        assert {each: stated[name][each] for each in cells} == cells, name


def test_registers_allow_the_blocks_of_a_device(
    architecture: int, kernels: dict[str, list[Kernel]], shared_bytes: SharedBytes
) -> None:
    """Depths of pipelines were chosen for as many as shared memory allows."""
    by_name = {kernel.name: kernel for kernel in each_of(kernels, "cuda/attention")}
    column = COLUMNS[DEVICES[architecture]]
    for (size, head, columns), row in SHAPES.items():
        stages, blocks = row[column]
        cached = "bf16" if size == 2 else "e4m3"
        name = f"attention_mma_kernel<bf16, {cached}, {head}, {columns // 8}, {stages}>"
        if head == LATENT_HEAD:
            name = f"attention_latent_kernel<bf16, {columns // 16}, {stages}>"
        assert statements.blocks_of(by_name[name], architecture, shared_bytes) == blocks, name


def test_every_kernel_fits_a_device(
    architecture: int, kernels: dict[str, list[Kernel]], shared_bytes: SharedBytes
) -> None:
    """The deeper of two pipelines of attention need not, nor the wider kernels of prompts."""
    most: dict[str, int] = {}
    for kernel in each_of(kernels, "cuda/"):
        if statements.is_empty(kernel):
            continue
        shape = name = kernel.name
        choices = {
            "attention_mma_kernel": 1,
            "attention_latent_kernel": 1,
            "attention_prompt_kernel": 2,
            "attention_shared_kernel": 2,
        }
        for prefix, num_choices in choices.items():
            if name.startswith(prefix):
                shape = name.rsplit(",", num_choices)[0]
        blocks = statements.blocks_of(kernel, architecture, shared_bytes)
        most[shape] = max(blocks, most.get(shape, 0))
    assert [shape for shape, blocks in most.items() if blocks == 0] == []


def test_memory_of_launches_is_known(
    kernels: dict[str, list[Kernel]], shared_bytes: SharedBytes
) -> None:
    asking = (
        "attention_mma_kernel",
        "attention_latent_kernel",
        "linear_kernel",
        "head_linear_kernel",
        "warpgroup_linear_kernel",
        "warpgroup_prompt_kernel",
        "warpgroup_shared_kernel",
        "int8_linear_kernel",
        "weight_only_kernel",
        "warpgroup_weight_only_kernel",
        "weight_only_experts_kernel",
    )
    found = [each for each in each_of(kernels, "cuda/") if each.name.startswith(asking)]
    assert len(found) > 80
    assert [each.name for each in found if shared_bytes.of(each) == 0] == []
