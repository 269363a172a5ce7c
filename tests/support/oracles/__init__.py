"""What says which result is right, and what draws or forges input."""
