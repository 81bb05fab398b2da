"""The frozen values everybody exchanges: they import nothing but each other, and hold no behaviour beyond validation."""
