"""Pictures and PDFs of clients, read in processes of their own, which hold no other data and may open nothing."""
