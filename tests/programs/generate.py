"""generate() with a static and a dynamic cache, greedy and sampled."""

import torch
from results import show
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
).eval()
model.forward = torch.compile(model.forward, backend="aot_eager")
ids = torch.randint(3, 64, (2, 7))
mask = torch.ones_like(ids)
mask[1, :2] = 0
found = {}
for cache in ("static", "dynamic"):
    for sample in (False, True):
        found[f"{cache}_{sample}"] = model.generate(
            ids, attention_mask=mask, max_new_tokens=6, do_sample=sample, cache_implementation=cache
        )
show(**found)
