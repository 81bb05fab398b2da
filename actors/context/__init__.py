"""System Context: what the model is told about its surroundings, from sources to text. Sessions decide when."""
