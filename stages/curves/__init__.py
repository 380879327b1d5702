"""What a training log says about the run: readers of logs, signatures in curves, their causes."""
