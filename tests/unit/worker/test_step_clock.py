"""The clock of a step does not count what the machine took from it."""

from worker_svc.service.step_clock import StepClock, waits_for_cores


class Machine:
    def __init__(self) -> None:
        self.now = 100.0
        self.waits = {"1": 5.0, "2": 1.0}

    def clock(self) -> StepClock:
        return StepClock(lambda: self.now, lambda: dict(self.waits))


def test_a_step_that_has_its_cores_runs_as_long_as_the_clock_on_the_wall() -> None:
    machine = Machine()
    clock = machine.clock()
    ran_s = 0.0
    for _ in range(20):
        machine.now += 0.2
        ran_s = clock.tick(7, machine.now - 100.0)
    assert abs(ran_s - 4.0) < 1e-9


def test_waiting_for_a_core_and_being_stopped_do_not_count() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.now += 0.2
    machine.waits["2"] += 0.15
    machine.waits["1"] += 0.05
    assert abs(clock.tick(7, 0.2) - 0.05) < 1e-9
    machine.now += 30.0
    assert abs(clock.tick(7, 30.2) - 0.45) < 1e-9
    # A thread that began meanwhile has not delayed anything before.
    machine.now += 0.2
    machine.waits["3"] = 0.2
    assert abs(clock.tick(7, 30.4) - 0.65) < 1e-9


def test_each_step_begins_anew_and_has_run_no_longer_than_since_then() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.now += 0.3
    assert abs(clock.tick(7, 0.3) - 0.3) < 1e-9
    machine.now += 0.3
    assert abs(clock.tick(8, 0.1) - 0.1) < 1e-9
    machine.now += 0.2
    assert abs(clock.tick(0, 0.0)) < 1e-9


def test_the_kernel_counts_waits_of_the_threads_here() -> None:
    assert all(each >= 0.0 for each in waits_for_cores().values())
