"""Render, check and apply the manifests of deploy/k8s."""
