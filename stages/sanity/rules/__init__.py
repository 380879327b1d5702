"""The rules of the sanity check by subject: can this step, with this model, loss and data, learn?

Sources: Karpathy, "A Recipe for Training Neural Networks"; the rules of SageMaker Debugger,
AutoTrainer, TheDeepChecker and UMLAUT; the invariants of TrainCheck. Limits with their sources
stand in sanity/limits.py.
"""
