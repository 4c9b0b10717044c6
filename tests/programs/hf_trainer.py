"""Hugging Face Trainer with torch_compile=True: dropout, gradient accumulation, a scheduler, evaluation."""

import tempfile

import torch
from results import show
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, number):
        self.ids = torch.randint(3, 60, (number, 12))
        self.labels = self.ids[:, 0] % 2

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        torch_compile=True,
        torch_compile_backend="aot_eager",
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        warmup_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences(32), eval_dataset=Sentences(8))
    done = trainer.train()
    evaluated = trainer.evaluate()
show(model=model, loss=done.training_loss, evaluated=evaluated["eval_loss"])
