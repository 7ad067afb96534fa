"""Grammars that texts must follow, compiled by llguidance (Geng et al., arXiv 2501.10868; extra ``serve``).

Knows grammars and the bytes of tokens. Does not know drafts, models or sampling.
"""

from sooner.constraint.compile import MAX_SOURCE, ConstraintKind, compile_constraint
from sooner.constraint.matcher import CompiledConstraint, GrammarMatcher

__all__ = ["MAX_SOURCE", "CompiledConstraint", "ConstraintKind", "GrammarMatcher", "compile_constraint"]
