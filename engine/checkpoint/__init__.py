"""Model repositories: finding and checking their files, downloading them from the hub. Needs no torch."""
