"""Manifests for Kubernetes: the Helm chart and those without Ray."""
