"""What happens to a loaded model before its core is created."""
