"""What `python -m earmark top` is made of: what is on a server, found at a bounded cost, and how it is shown."""
