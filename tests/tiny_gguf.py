"""Makes a model of 2 MB whose answer is known: the alphabet.

A llama with one layer that adds nothing: its weights are zero, so the logits of the next token depend on the last token
alone, through a table that we write. After any byte comes `a`, after `a` comes `b`, and so on; after `z` comes the end
of the turn or, where that is forbidden (ignore_eos), `a` again. Tokens are single bytes. So a chat answers
"abcdefghijklmnopqrstuvwxyz" in 27 tokens, and a completion of "abc" goes on with "defgh".

    python -m tests.tiny_gguf alphabet.gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
ALPHABET_TOKENS = len(ALPHABET) + 1
"""What the whole answer takes: the letters and the end of the turn."""

TRAINED_CONTEXT = 2048

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)

_NORMAL, _CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
_LIKELY, _SECOND = 1.0, 0.6
_HEADS = 4

Weights = NDArray[np.float32]


def make_alphabet(path: Path, *, context: int = TRAINED_CONTEXT, chat: bool = True) -> Path:
    """Write the model to `path` and return it. `context` is what it claims to be trained for; without `chat` it has no
    chat template."""
    tokens, kinds = _vocabulary()
    size = -(-len(tokens) // 32) * 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-alphabet")
    writer.add_license("cc0-1.0")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(context)
    writer.add_embedding_length(size)
    writer.add_feed_forward_length(32)
    writer.add_block_count(1)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(size // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    _add_tokenizer(writer, tokens, kinds)
    if chat:
        writer.add_chat_template(TEMPLATE)
    for name, weights in _tensors(tokens, size).items():
        writer.add_tensor(f"{name}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_names() -> list[str]:
    """Return GPT-2's name of each byte: itself where it is printable, else a letter beyond Latin-1."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _vocabulary() -> tuple[list[str], list[gguf.TokenType]]:
    """Return the tokens and their kinds: bytes, one merge (a tokenizer must have some), three control tokens."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*_byte_names(), "th", *control]
    return tokens, [_CONTROL if token in control else _NORMAL for token in tokens]


def _add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str], kinds: list[gguf.TokenType]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)


def _tensors(tokens: list[str], size: int) -> dict[str, Weights]:
    embeddings = np.eye(len(tokens), size, dtype=np.float32)  # one channel a token
    ones = np.ones(size, np.float32)
    tensors = {
        "token_embd": embeddings,
        "output_norm": ones,
        "output": _successors(tokens, size),
        "blk.0.attn_norm": ones,
        "blk.0.ffn_norm": ones,
        "blk.0.ffn_gate": np.zeros((32, size), np.float32),
        "blk.0.ffn_up": np.zeros((32, size), np.float32),
        "blk.0.ffn_down": np.zeros((size, 32), np.float32),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensors[f"blk.0.{name}"] = np.zeros((size, size), np.float32)
    return tensors


def _successors(tokens: list[str], size: int) -> Weights:
    """Return the table of logits: row is the next token, column the last one."""
    table = np.zeros((len(tokens), size), np.float32)
    first = tokens.index("a")
    following = dict(zip(ALPHABET, [*ALPHABET[1:], "<|im_end|>"], strict=True))
    for column, token in enumerate(tokens):
        if token in following:
            table[first, column] = _SECOND
            table[tokens.index(following[token]), column] = _LIKELY
        else:
            table[first, column] = _LIKELY
    return table


if __name__ == "__main__":
    make_alphabet(Path(sys.argv[1]))
