"""The one training step and what it needs: order, schedule, optimizer, loss, checkpoints."""
