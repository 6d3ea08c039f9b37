"""Who computes an op: porter, plain torch, and the peers, each behind the same call.

A provider's file has functions that import the peer and give its ops; nothing of a peer is imported before that.
Peers are called as their own documentation calls them, with their defaults.
"""
