"""What stands above the services: command line, cluster supervisor, launchers, `LLM`."""
