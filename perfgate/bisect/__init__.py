"""Which commit lost it: a search among commits by pairs, from all evidence so far, with an error rate over the whole.

:mod:`perfgate.bisect.commit_posterior` and :mod:`perfgate.bisect.commit_search` are pure: what was measured in, the
next comparison or the answer out. :mod:`perfgate.bisect.bisection` builds and measures.
"""
