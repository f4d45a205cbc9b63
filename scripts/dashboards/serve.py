"""Ray Serve's own metrics of an application."""

from __future__ import annotations

from dashboards.panels import Dashboard, Query, Row, Variable, lines, stat
from dashboards.queries import Source
from outrider.telemetry import names as n

S = Source('application=~"$application"')
R = "ray_serve_"
STATES = {
    "0": "unknown",
    "1": "failed to deploy",
    "2": "unhealthy",
    "3": "updating",
    "4": "scaling up",
    "5": "scaling down",
    "6": "healthy",
}

REPLICAS = Row(
    "Replicas",
    (
        stat(
            "Deployments",
            "What Serve says of each deployment.",
            "none",
            S.gauge(f"{R}deployment_status", "deployment", how="min"),
            mappings=STATES,
            alerts=("OutriderServeDeploymentUnhealthy",),
            width=24,
        ),
        lines(
            "Replicas wanted and there",
            "The number that the policy decided on, and replicas that are healthy.",
            "none",
            Query(
                S.gauge(f"{R}autoscaling_target_replicas", "deployment", how="max"), "{{deployment}} wanted"
            ),
            Query(S.gauge(f"{R}deployment_replica_healthy", "deployment"), "{{deployment}} healthy"),
            alerts=("OutriderServeReplicasMissing",),
            width=12,
        ),
        lines(
            "Replicas the policy asks for",
            "Before bounds and delays.",
            "none",
            Query(S.gauge(f"{R}autoscaling_desired_replicas", "deployment", how="max"), "{{deployment}}"),
            width=12,
        ),
        lines(
            "Starts of replicas",
            "A second. Without scaling or an update: replicas die.",
            "ops",
            Query(S.rate(f"{R}deployment_replica_starts_total", "deployment"), "{{deployment}}"),
        ),
        lines(
            "Time to start a replica",
            "From its creation until it is ready, models loaded; mean.",
            "ms",
            Query(S.mean(f"{R}replica_startup_latency_ms", "deployment"), "{{deployment}}"),
        ),
        lines(
            "Health checks",
            "Time that a check takes, p95. Slow ones: the replica's event loop is blocked.",
            "ms",
            Query(S.quantile(0.95, f"{R}health_check_latency_ms", "deployment"), "{{deployment}}"),
        ),
    ),
)

N = Source("")
POLICY = Row(
    "Scaling policy",
    (
        lines(
            "Replicas wanted",
            "By what is known now, before bounds and delays; and what was decided.",
            "none",
            Query(N.gauge(f"ray_{n.SCALING_WANTED.name}", "deployment", how="max"), "{{deployment}} wanted"),
            Query(
                N.gauge(f"ray_{n.SCALING_REPLICAS.name}", "deployment", how="max"), "{{deployment}} decided"
            ),
            width=12,
        ),
        lines(
            "Changes",
            "Changes of the number of replicas, a second, by why.",
            "ops",
            Query(
                N.rate(f"ray_{n.SCALING_DECISIONS.name}", "deployment, reason"), "{{deployment}}: {{reason}}"
            ),
            width=12,
        ),
    ),
)

INGRESS = Row(
    "Ingress",
    (
        lines(
            "HTTP requests",
            "Through Serve's proxies, a second, by status.",
            "reqps",
            Query(S.rate(f"{R}num_http_requests_total", "route, status_code"), "{{route}} {{status_code}}"),
        ),
        lines(
            "Calls under way",
            "Those that Serve counts: open requests at gateways. Traffic between services is not among them.",
            "none",
            Query(S.gauge(f"{R}replica_processing_queries", "deployment"), "{{deployment}}"),
        ),
        lines(
            "Calls that wait for a replica",
            "Above 0 for long: gateways are at max_ongoing_requests.",
            "none",
            Query(S.gauge(f"{R}deployment_queued_queries", "deployment"), "{{deployment}}"),
        ),
    ),
)

NODES = Row(
    "Nodes",
    (
        lines(
            "CPU",
            "Use of each Ray node.",
            "percent",
            Query(N.gauge("ray_node_cpu_utilization", "ip"), "{{ip}}"),
            width=12,
            maximum=100,
        ),
        lines(
            "Memory",
            "Share in use of each Ray node.",
            "percentunit",
            Query(f"{N.gauge('ray_node_mem_used', 'ip')} / {N.gauge('ray_node_mem_total', 'ip')}", "{{ip}}"),
            width=12,
            maximum=1,
        ),
    ),
)

DASHBOARD = Dashboard(
    "outrider-serve",
    "Outrider: Ray Serve",
    "How Ray Serve places and scales the deployments of an application. Needs Ray's own metrics.",
    (Variable("application", "application", f"{R}deployment_status"),),
    (REPLICAS, POLICY, INGRESS, NODES),
)
