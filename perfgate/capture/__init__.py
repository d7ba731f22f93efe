"""Taking trials: engines, the instruments that watch them, and the session that orders both.

It may import record and below, never judge: the record is all that passes between them.
"""
