"""The arithmetic of limits: pure functions of (state, limit, amount, now).

No I/O, no clock, no await. The memory backend runs these functions under its lock; a store that decides in
a script of its own mirrors them and returns the states that it saw, from which `admission` computes every
word of an answer. Time is whole microseconds and amounts are integers; where a fraction cannot be avoided
the operations on doubles are written out in the order in which a mirror must repeat them (R12).
"""
