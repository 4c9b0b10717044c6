"""LoRA with peft on a small GPT-2: only the adapters are trained, then merged."""

import torch
from peft import LoraConfig, get_peft_model
from results import show
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(
    GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2)
)
model = get_peft_model(
    base, LoraConfig(r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
model.train()
losses = []
for _ in range(3):
    ids = torch.randint(3, 60, (2, 8))
    loss = compiled(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
merged = model.merge_and_unload().eval()
with torch.no_grad():
    logits = torch.compile(merged, backend="aot_eager")(input_ids=ids).logits
show(losses=losses, merged=merged, logits=logits)
