"""Traces over OTLP, Prometheus metrics, and every name they use.

- `names`   each span, attribute and metric: a rename is one edit
- `tracing` OpenTelemetry set-up, trace context in messages
- `metrics` the metrics of each service as methods in its own terms, and /metrics
"""
