"""The adaptive speculation controller: plain values in, plain values out."""
