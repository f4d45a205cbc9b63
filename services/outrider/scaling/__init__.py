"""How many verifiers and drafters there should be. Pure: it knows neither Ray nor Kubernetes.

- `signals`      what the services tell
- `observation`  everything at one moment, and what is answered
- `settings`     targets, delays, prices
- `deciding`     the decision; `memory` is what it hands on to the next one
- `counting`     what happened between observations; `watching`: who tells nothing, or does nothing
- `verifiers`    wanted by sessions and KV
- `drafters`     wanted by sessions, queue and late proposals
- `worth`        what drafts bring; `mix`: how many give most tokens per cost; `verdicts`: both together
- `trial`        kinds that do not pay go, and are tried again
- `steady`       bounds and delays
"""

from outrider.scaling.deciding import decide
from outrider.scaling.memory import Memory
from outrider.scaling.observation import Decision, Observation, Pool, Why, Wish
from outrider.scaling.settings import ScalingSettings

__all__ = ["Decision", "Memory", "Observation", "Pool", "ScalingSettings", "Why", "Wish", "decide"]
