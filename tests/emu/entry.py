"""The command line of a machine whose GPU is the emulator: `python -m tests.emu.entry worker ...`.

Needs kernels built with the emulator.
"""

import sys

from launch.cli.main import main


def plug_in() -> None:
    """Let `--device cuda` open the emulated GPU."""
    from tests.emu.emulated_device import EmulatedDeviceOfProcess
    from worker_svc.device import open as opening

    opening.open_device = lambda name: EmulatedDeviceOfProcess(  # type: ignore[assignment]
        int(name.partition(":")[2] or 0)
    )


if __name__ == "__main__":
    # The other services import no torch.
    if sys.argv[1:2] == ["worker"]:
        plug_in()
    main()
