"""Published checkpoints of heads, read as they are."""

from outrider.drafting.heads.checkpoints.eagle import load_eagle as load_eagle
from outrider.drafting.heads.checkpoints.medusa import load_medusa as load_medusa
