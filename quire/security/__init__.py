"""Certificates, roles and API keys."""
