"""What services count, and how Prometheus reads it.

Services keep plain numbers, which cost next to nothing to bump, and a collector reads them when
somebody asks. Only `families`, `runtime` and the services' collectors import prometheus_client: a
service without an admin port does without it.
"""
