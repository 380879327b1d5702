"""Does the model itself, trained on most of the batches, predict the others better than chance?"""

import torch
from torch.optim import AdamW

from .batches import Batch, labels_of
from .label_information import Information, score
from .subject import Subject
from .tasks import Task, side_by_side

RATE = 3e-3


def learned_information(
    subject: Subject, batches: list[Batch], task: Task | None, steps: int
) -> Information:
    """Train with an optimizer of the harness's own; the caller puts everything back."""
    held = max(len(batches) // 4, 1)
    train, test = batches[:-held], batches[-held:]
    if not train or task is None:
        raise ValueError("too few batches")
    trainable = [p for p in subject.model.parameters() if p.requires_grad]
    optimizer = AdamW(trainable, lr=RATE, weight_decay=0.0)
    subject.model.train()
    for step in range(steps):
        batch = train[step % len(train)]
        optimizer.zero_grad()
        subject.loss(subject.forward(batch), batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    subject.model.eval()
    predicted, known = [], []
    for batch in test:
        labels = labels_of(batch)
        assert labels is not None
        side = side_by_side(subject.logits(batch), labels, task, None)
        assert side is not None
        z = side.logits.double()
        predicted.append(z.argmax(1).double() if z.shape[1] > 1 else z[:, 0])
        known.append(side.labels)
    p, y = torch.cat(predicted), torch.cat(known)
    if task == "regression":
        return score(p, y.double(), classes=False)
    if task == "binary":
        p = (p > 0).double()
    return score(p, y.long(), classes=True)
