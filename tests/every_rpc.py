"""Every RPC of the protos."""

import importlib
import pkgutil
from collections.abc import Iterator

import quire.facades
import quire.v1


def every_rpc() -> Iterator[str]:
    """Yield every RPC, "package.Service/Method"."""
    for package in (quire.v1, quire.facades):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("_pb2"):
                continue
            descriptor = importlib.import_module(module.name).DESCRIPTOR
            for service in descriptor.services_by_name.values():
                yield from (f"{service.full_name}/{method.name}" for method in service.methods)
