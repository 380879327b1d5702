from ..probes.conftest import tokens

__all__ = ["tokens"]
