"""Your own code: what a `_target_` in params.yaml may name. The README says how each is called."""
