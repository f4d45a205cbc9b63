"""Structured output: which tokens a grammar allows next. Wraps llguidance; knows no models and no sessions.

compiler = GrammarCompiler(lambda: GrammarVocabulary.load(folder, vocab_size=49152, eos_token_ids={2}))
compiled = compiler.submit(Grammar(GrammarKind.REGEX, "[0-9]+")).result()
matcher = compiled.matcher(stop_token_ids=())
"""

from outrider.structured.compiler import CompiledGrammar, GrammarCompiler
from outrider.structured.matcher import GrammarMatcher
from outrider.structured.vocabulary import GrammarVocabulary

__all__ = ["CompiledGrammar", "GrammarCompiler", "GrammarMatcher", "GrammarVocabulary"]
