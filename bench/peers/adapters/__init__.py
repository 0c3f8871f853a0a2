"""Programs that run one engine each, within the virtual environment of that engine."""
