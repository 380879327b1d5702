"""Which targets does the loss really train on, with which weight? Read from dL/dlogits.

The cross-entropy of one position has the gradient w (p - (1 - e) onehot(t) - e / K): over all
classes but t a straight line in p. Its slope is the weight w that the normaliser really gave, its
intercept the label smoothing e, the entry off the line the class t that is really trained on, and
the distance to the line says whether the loss is a cross-entropy at all. The logits are made up and
confident, because at a fresh model's even guess smoothing and a second softmax hardly show. They
are put in place of the model's own while the user's own training step runs.
"""
