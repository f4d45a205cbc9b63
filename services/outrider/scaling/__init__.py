"""How many verifiers and drafters there should be. Pure: it knows neither Ray nor Kubernetes.

- `signals`   what the services tell
"""
