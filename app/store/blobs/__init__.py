"""Blobs: the bytes of pictures and files that rows refer to, and the order in which rows and blobs are evicted."""
