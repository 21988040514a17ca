"""Random histories of a limiter, and the plain model that says what must come of them.

`values` and `model` are the model, `steps` what a history is made of, `drawing` what hypothesis draws, and `driver`
plays one through a limiter and through the model, step by step. `drawing` alone imports hypothesis.
"""
