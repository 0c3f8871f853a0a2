"""Where the workers of a cluster come from: this machine, a Ray cluster, or given addresses."""

from launch.cluster.config import ClusterConfig, LauncherName
from launch.launchers.base import Launcher, Say
from launch.launchers.local import LocalLauncher


def make_launcher(config: ClusterConfig, say: Say) -> Launcher:
    """Return the launcher that `config` names.

    Args:
        config: of the cluster.
        say: shows the user what is being waited for.

    Raises:
        ConfigError: what the launcher needs is not installed.
    """
    match LauncherName(config.launcher):
        case LauncherName.LOCAL:
            return LocalLauncher(config, say)
        case LauncherName.STATIC:
            from launch.launchers.static import StaticLauncher

            return StaticLauncher(config, say)
        case LauncherName.RAY:
            from launch.launchers.ray_launcher import RayLauncher

            return RayLauncher(config, say)
