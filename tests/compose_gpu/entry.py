"""The worker's command line in a container that may have been given a GPU, as a node in /dev.

Where there is one, `--device auto` and `--device cuda` open the emulated GPU; else what is there.
"""

from pathlib import Path

from launch.cli.main import main
from tests.emu.entry import plug_in

if __name__ == "__main__":
    if any(Path("/dev").glob("nvidia[0-9]*")):
        plug_in()
    main()
