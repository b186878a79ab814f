"""LoRA adapters over one base model: PEFT folders, loaded and unloaded while the engine runs."""
