"""What services are asked for beside a model, read before anything starts as they read it later."""

from pathlib import Path

from launch.cluster.config import ClusterConfig
from quire.contract.errors import ConfigError, ModelLoadError
from quire.tokenizer_files import check_tokenizer_json
from router.chat.template_files import load_checked
from router.generation_config import load_generation_defaults


def check_services(config: ClusterConfig) -> None:
    """Check the files and URLs that router and traces are given.

    Raises:
        ConfigError: one cannot be used; in the words of the service that would refuse it.
    """
    try:
        check_tokenizer_json(config.model)
        load_checked(config.model, config.chat_template)
    except ModelLoadError as error:
        raise ConfigError(error.message) from None
    load_generation_defaults(config.model, config.generation_config, config.generation_overrides)
    # Imported where they are asked for: most starts need none of them.
    if config.api_keys is not None:
        from quire.security.api_key_file import read_keys

        read_keys(config.api_keys)
    if config.ssl_certfile is not None:
        from router.http.tls import file_context

        file_context(config)
    if config.otlp_endpoint:
        from quire.observe.otel import check_endpoint

        check_endpoint(config.otlp_endpoint)


def check_places(config: ClusterConfig) -> None:
    """Make the places that router and scheduler are given, as far as they are left there.

    Raises:
        ConfigError: one cannot be made.
    """
    if config.uds:
        from router.http.unix_socket import check_place

        check_place(config.uds)
    if config.record:
        from quire.observe.recording import make_directory

        make_directory(Path(config.record))
