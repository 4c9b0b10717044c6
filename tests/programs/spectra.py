"""FFTs, complex weights and spectrograms, trained."""

import warnings

import torch
from results import show

warnings.simplefilter("ignore")  # inductor says that it leaves complex operators to eager
torch.manual_seed(0)


class Fourier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 9, dtype=torch.complex64) * 0.1)
        self.out = torch.nn.Linear(16, 2)

    def forward(self, x):
        spectrum = torch.fft.rfft(x) * self.weight
        mixed = torch.einsum("bcf,dcf->bdf", spectrum, torch.stack([self.weight, self.weight.conj()]))
        power = torch.view_as_real(mixed).square().sum(-1).sum((1, 2))
        return self.out(torch.fft.irfft(spectrum, n=16)).sum(1) + power[:, None], torch.angle(mixed).abs() > 4


model = Fourier()
compiled = torch.compile(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(2):
    y, flags = compiled(torch.randn(3, 4, 16))
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
window = torch.hann_window(32)
spectrogram = torch.compile(lambda x: torch.stft(x, 32, 8, window=window, return_complex=True).abs().log1p())(
    torch.randn(2, 200)
)
show(model=model, flags=flags, spectrogram=spectrogram)
