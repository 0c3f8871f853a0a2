"""The options of vLLM's command line and engine, as Quire's."""
