"""Everything that runs in a nursery: it holds no SQL, and what is written is written by exactly one actor."""
