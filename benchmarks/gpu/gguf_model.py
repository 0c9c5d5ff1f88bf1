"""A Gemma 3 model in a GGUF file as a folder that engines serve: safetensors in bfloat16, and its tokenizer.

    python benchmarks/gpu/gguf_model.py MODEL.gguf FOLDER

transformers reads the tensors and dequantises them; what it keeps of the quantisation is taken away, since engines would
want to undo it again. The tokenizer is built here out of the file's pieces and scores (SentencePiece's BPE: a merge is as
early as the score of what it makes is high), because transformers 5.17 leaves the merges out and splits into characters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of token in `tokenizer.ggml.token_type`."""


def values(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def merges_of(pieces: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    found = []
    for piece, number in pieces.items():
        for at in range(1, len(piece)):
            left, right = pieces.get(piece[:at]), pieces.get(piece[at:])
            if left is not None and right is not None:
                found.append((-scores[number], left, right, piece[:at], piece[at:]))
    return [(left, right) for _, _, _, left, right in sorted(found)]


def write_tokenizer(source: Path, target: Path) -> None:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    reader = GGUFReader(source)
    tokens, scores, kinds = (values(reader, f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type"))
    bos, eos = (int(values(reader, f"tokenizer.ggml.{name}_token_id")) for name in ("bos", "eos"))
    pieces = {token: number for number, token in enumerate(tokens)}
    plain = {token: number for token, number in pieces.items() if kinds[number] == NORMAL}
    unknown = next((tokens[number] for number, kind in enumerate(kinds) if kind == UNKNOWN), None)
    made = Tokenizer(models.BPE(pieces, merges_of(plain, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(Regex("\n+|[^\n]+"), "isolated")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    special = [AddedToken(tokens[number], special=True, normalized=False) for number in (bos, eos)]
    special += [
        AddedToken(token, special=True, normalized=False)
        for number, token in enumerate(tokens)
        if kinds[number] == CONTROL and number not in (bos, eos)
    ]
    made.add_special_tokens(special)
    made.add_tokens(
        [AddedToken(token, normalized=False) for number, token in enumerate(tokens) if kinds[number] == USER_DEFINED]
    )
    made.save(str(target / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[bos], "eos_token": tokens[eos]}
    told["unk_token"] = unknown
    (target / "tokenizer_config.json").write_text(json.dumps(told, indent=1) + "\n")


def write_weights(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    for one in (model.config, model.generation_config):
        if hasattr(one, "quantization_config"):
            del one.quantization_config
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    model.save_pretrained(target)


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = Path(argv[0]), Path(argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_weights(source, target)
    write_tokenizer(source, target)
    config = json.loads((target / "config.json").read_text())
    print(f"{target}: {config['architectures'][0]}, {config.get('dtype')}, vocabulary of {config['vocab_size']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
