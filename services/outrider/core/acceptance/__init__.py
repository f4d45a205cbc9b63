"""The rules "token" and "block": draft tokens are judged by their distributions. See docs/acceptance.md.

Pure functions of target distributions, draft distributions and uniform numbers. The default rule, "coupled",
needs none of this: it is `core.walk`.
"""

from outrider.core.acceptance.judge import judge, rule_of
from outrider.core.acceptance.laws import draw, ranked_law
from outrider.core.acceptance.uniforms import Round, RoundUniforms, Uniforms, draft_uniforms, round_uniforms

__all__ = [
    "Round",
    "RoundUniforms",
    "Uniforms",
    "draft_uniforms",
    "draw",
    "judge",
    "ranked_law",
    "round_uniforms",
    "rule_of",
]
