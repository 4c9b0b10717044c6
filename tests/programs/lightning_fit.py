"""Lightning's Trainer with a compiled module: training, validation, prediction."""

import logging
import tempfile
import warnings

import lightning
import torch
from results import show

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 3),
        )

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


lightning.seed_everything(0, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(0, 3, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = Classifier()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    compiled = torch.compile(model)
    trainer.fit(compiled, loader, loader)
    accuracy = trainer.callback_metrics["accuracy"]  # predict forgets it
    predicted = trainer.predict(compiled, torch.utils.data.DataLoader(data.tensors[0], batch_size=8))
show(model=model, predicted=predicted, accuracy=accuracy)
