"""A denoising loop: a compiled UNet and a scheduler, then two steps of training."""

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DConditionModel
from results import show

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8,
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    cross_attention_dim=16,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
)
compiled = torch.compile(unet, backend="aot_eager")
prompt = torch.randn(2, 5, 16)
images = []
for kind in (DDIMScheduler, DDPMScheduler):
    scheduler = kind(num_train_timesteps=100)
    scheduler.set_timesteps(3)
    latents = torch.randn(1, 4, 8, 8)
    with torch.inference_mode():
        for t in scheduler.timesteps:
            unconditional, conditional = compiled(
                torch.cat([latents] * 2), t, encoder_hidden_states=prompt
            ).sample.chunk(2)
            noise = unconditional + 5.0 * (conditional - unconditional)
            latents = scheduler.step(noise, t, latents).prev_sample
    images.append(latents)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
for _ in range(2):
    clean, noise, t = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8), torch.randint(0, 100, (2,))
    loss = (
        (compiled(scheduler.add_noise(clean, noise, t), t, encoder_hidden_states=prompt).sample - noise)
        .square()
        .mean()
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
show(images=images, unet=unet)
