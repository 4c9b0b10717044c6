"""LSTM and GRU over time, which dynamo traces where it is allowed to, with the state carried on, packed sequences, and training."""

import torch
from results import show

torch.manual_seed(0)
torch._dynamo.config.allow_rnn = True


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.lstm = torch.nn.LSTM(8, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.gru = torch.nn.GRU(16, 8, batch_first=True)
        self.cell = torch.nn.GRUCell(8, 8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, ids, state=None):
        out, _ = self.lstm(self.embed(ids))
        out, state = self.gru(out, state)
        last = self.cell(out[:, -1], state[0])
        return self.head(out), last, state


model = Tagger()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
state = None
for _ in range(2):
    logits, last, state = compiled(torch.randint(0, 20, (3, 5)), state)
    (logits.square().mean() + last.square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = state.detach()
model.eval()
with torch.no_grad():
    evaluated = compiled(torch.randint(0, 20, (3, 5)))
lstm = torch.nn.LSTM(4, 4)
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 4), [5, 3])
unpacked = ()
if torch.__version__ >= (2, 13):  # dynamo of torch 2.12 raises TorchRuntimeError here, whatever the backend
    unpacked = torch.compile(
        lambda: torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])[0], backend="aot_eager"
    )()
show(model=model, evaluated=evaluated, state=state, unpacked=unpacked)
