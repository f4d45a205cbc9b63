"""Property tests here are quick, but machines that run them may be busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("gateway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gateway")
