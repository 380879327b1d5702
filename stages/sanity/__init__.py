"""The sanity check as a library call: any PyTorch model, the user's own step and evaluation."""

from .check import sanity_check
from .report import SanityReport

__all__ = ["SanityReport", "sanity_check"]
