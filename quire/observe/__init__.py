"""Logs, traces, metrics and the admin port."""
