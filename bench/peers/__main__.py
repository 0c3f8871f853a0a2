"""Quire beside other engines: `python -m bench.peers setup | run | report`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.peers import record, report
from bench.peers.environments import BUILD, OURS, ROOT, recipes, setup
from bench.peers.probes import processor
from bench.peers.record import Results
from bench.peers.rounds import Plan, run_rounds
from bench.peers.shapes import BYTES, SHAPES
from bench.peers.workloads import WORKLOADS

RESULTS = BUILD / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "images"


def install(engines: list[str]) -> int:
    """Make the environments of engines; return how many could not be made."""
    failed = 0
    for engine in engines:
        print(f"{engine}: installing, see {BUILD / engine}.log", flush=True)
        try:
            setup(engine)
        except subprocess.CalledProcessError as error:
            failed += 1
            print(f"{engine}: {error}")
    return failed


def measure(arguments: argparse.Namespace) -> int:
    """Run the rounds and write what came of them; return 1 if nothing did."""
    plan = Plan(
        engines=arguments.engines,
        shapes=arguments.shapes,
        dtypes=arguments.dtypes,
        workloads=arguments.workloads,
        rounds=arguments.rounds,
        num_threads=arguments.threads,
        quick=arguments.quick,
    )
    earlier = None
    if arguments.add and arguments.output.exists():
        earlier = record.load(arguments.output)
        record.check_same_kind(earlier, Results(processor(), plan.num_threads, plan.quick))
    # Engines get the same cores, however many threads they start beside those that compute.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    results = run_rounds(plan, lambda line: print(line, flush=True))
    if earlier is not None:
        results = record.merged(earlier, results)
    record.save(results, arguments.output)
    for line in record.lines(results):
        print(line)
    print(f"written to {arguments.output}")
    return int(not results.rows)


def main() -> int:
    peers = list(recipes())
    engines = [OURS, *peers]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    setup_parser = commands.add_parser("setup", help="make the environments of engines")
    setup_parser.add_argument("engines", nargs="*", default=peers, help=" ".join(engines))
    run_parser = commands.add_parser("run", help="measure, and write JSON")
    for name, choices in (
        ("engines", engines),
        ("shapes", list(SHAPES)),
        ("dtypes", list(BYTES)),
        ("workloads", list(WORKLOADS)),
    ):
        run_parser.add_argument(f"--{name}", nargs="+", choices=choices, default=choices)
    run_parser.add_argument("--rounds", type=int, default=3)
    run_parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    run_parser.add_argument("--quick", action="store_true", help="fewer, shorter requests")
    run_parser.add_argument("--output", type=Path, default=RESULTS)
    run_parser.add_argument(
        "--add", action="store_true", help="keep what --output has of what is not measured now"
    )
    report_parser = commands.add_parser("report", help="write docs/benchmarks.md and its picture")
    report_parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    if arguments.command == "setup":
        return install(arguments.engines)
    if arguments.command == "run":
        return measure(arguments)
    report.write(record.load(arguments.results), PAGE, PICTURES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
