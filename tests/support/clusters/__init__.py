"""Starts of the processes of a cluster, and of what plays one of them."""
