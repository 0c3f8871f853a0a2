"""Where a request's time goes as its router sees it: parts add up, whatever happens to it."""

from hypothesis import given
from hypothesis import strategies as st

from quire.contract.time_breakdown import TimeBreakdown
from router.requests.time_ledger import Part, TimeLedger


class Clock:
    """Stands still until a test moves it; starts where a clock without a date may."""

    def __init__(self) -> None:
        self.us = 12_345

    def __call__(self) -> int:
        return self.us


def of_a_cell(**parts_us: int) -> TimeBreakdown:
    return TimeBreakdown(total_us=sum(parts_us.values()), **parts_us)


def parts_of(breakdown: TimeBreakdown) -> dict[str, int]:
    assert sum(breakdown.parts.values()) == breakdown.total_us
    return {name: us for name, us in breakdown.parts.items() if us}


def test_a_pause_is_delivery() -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    ledger.submitted()
    clock.us += 100
    ledger.reported(of_a_cell(decode_us=100))
    ledger.paused()
    clock.us += 1000
    ledger.submitted()
    clock.us += 50
    ledger.reported(of_a_cell(decode_us=50))
    ledger.ended(is_told=True)
    assert parts_of(ledger.breakdown()) == {"decode_us": 150, "delivery_us": 1000}


def test_what_the_cell_does_not_account_for_is_the_wire() -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    clock.us += 1
    with ledger.during(Part.TOKENIZE):
        clock.us += 10
    clock.us += 2
    ledger.submitted()
    clock.us += 100
    ledger.reported(of_a_cell(queue_step_us=20, prefill_us=60))
    clock.us += 100
    ledger.reported(of_a_cell(queue_step_us=20, prefill_us=60, decode_us=105))
    ledger.ended(is_told=True)
    clock.us += 7
    breakdown = ledger.breakdown()
    assert breakdown.total_us == clock.us - 12_345
    assert parts_of(breakdown) == {
        "router_us": 3,
        "tokenize_us": 10,
        "queue_step_us": 20,
        "prefill_us": 60,
        "decode_us": 105,
        "wire_us": 15,
        "delivery_us": 7,
    }


def test_what_a_lost_cell_did_after_its_last_report_is_recovery() -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    ledger.submitted()
    clock.us += 50
    ledger.reported(of_a_cell(prefill_us=40))
    clock.us += 1000
    ledger.lost()
    clock.us += 500
    ledger.waits_for_cell()
    clock.us += 500
    ledger.submitted()
    clock.us += 30
    ledger.reported(of_a_cell(prefill_us=25))
    ledger.ended(is_told=True)
    expected = {"prefill_us": 65, "wire_us": 15, "recovering_us": 2000}
    assert parts_of(ledger.breakdown()) == expected


def test_waiting_for_the_first_cell_is_no_recovery() -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    ledger.waits_for_cell()
    clock.us += 70
    ledger.submitted()
    clock.us += 5
    ledger.submitted()  # to another: that one was full
    clock.us += 9
    ledger.ended(is_told=False)
    assert parts_of(ledger.breakdown()) == {"not_ready_us": 70, "unreported_us": 14}


def test_clocks_that_differ_make_no_part_negative() -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    ledger.submitted()
    clock.us += 100
    ledger.reported(of_a_cell(queue_step_us=30, prefill_us=72))
    ledger.ended(is_told=True)
    assert parts_of(ledger.breakdown()) == {"queue_step_us": 30, "prefill_us": 70}


WHAT = ["tokenize", "submitted", "reported", "lost", "waits"]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(WHAT)), max_size=30), st.booleans()
)
def test_parts_always_add_up(happenings: list[tuple[int, str]], is_told: bool) -> None:
    clock = Clock()
    ledger = TimeLedger(clock)
    submitted_us: int | None = None
    for passed_us, what in happenings:
        clock.us += passed_us
        match what:
            case "tokenize" if submitted_us is None:
                with ledger.during(Part.TOKENIZE):
                    clock.us += passed_us
            case "submitted":
                ledger.submitted()
                submitted_us = clock.us
            case "reported" if submitted_us is not None:
                at_cell_us = clock.us - submitted_us
                ledger.reported(of_a_cell(prefill_us=at_cell_us // 2, decode_us=at_cell_us // 3))
            case "lost" if submitted_us is not None:
                ledger.lost()
                submitted_us = None
            case "waits" if submitted_us is None:
                ledger.waits_for_cell()
    ledger.ended(is_told)
    clock.us += 11
    breakdown = ledger.breakdown()
    assert sum(breakdown.parts.values()) == breakdown.total_us == clock.us - 12_345
    assert all(us >= 0 for us in breakdown.parts.values())
