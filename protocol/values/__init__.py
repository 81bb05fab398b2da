"""The frozen values everybody exchanges: they import only each other, and hold no behaviour beyond validation."""
