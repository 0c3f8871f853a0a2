"""What must hold between the objects of a deployment; each rule reads all and yields findings."""

from collections.abc import Callable, Iterator

from tools.manifests.objects import Finding, Manifests
from tools.manifests.rules.network import check_network
from tools.manifests.rules.options import check_options
from tools.manifests.rules.pools import check_pools
from tools.manifests.rules.references import check_references
from tools.manifests.rules.scaling import check_scaling
from tools.manifests.rules.security import check_security
from tools.manifests.rules.services import check_services
from tools.manifests.rules.workloads import check_workloads

RULES: tuple[Callable[[Manifests], Iterator[Finding]], ...] = (
    check_security,
    check_workloads,
    check_services,
    check_pools,
    check_network,
    check_references,
    check_options,
    check_scaling,
)
