"""Cases that several tests go through, and what checks them."""
