"""A small gateway with API keys and limits, and what the demo needs around it.

`app` and `answers` are the gateway, the part to copy. `provider` stands in for the provider behind it and `script` says
what that streams; `client` is for the users in front of it, `stores` is where limits are kept, `serving` runs both
servers, and `table` prints and judges what happens.
"""
