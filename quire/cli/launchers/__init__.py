"""Where the workers of a cluster come from: this machine, a Ray cluster, or somebody else."""

from quire.cli.cluster_config import ClusterConfig, LauncherName
from quire.cli.launchers.base import Launcher, Say
from quire.cli.launchers.local import LocalLauncher


def make_launcher(config: ClusterConfig, say: Say) -> Launcher:
    """Return the launcher that `config` names.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.

    Raises:
        ConfigError: what the launcher needs is not installed.
    """
    match config.launcher:
        case LauncherName.LOCAL:
            return LocalLauncher(config, say)
        case LauncherName.STATIC:
            from quire.cli.launchers.static import StaticLauncher

            return StaticLauncher(config, say)
        case LauncherName.RAY:
            from quire.cli.launchers.ray_launcher import RayLauncher

            return RayLauncher(config, say)
