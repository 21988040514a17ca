"""What `python -m earmark simulate` is made of: a trace, its replay, and what is told of it."""
