"""What the agents tell their user interface. Antiphon has a package of the same name, `antiphon.events`."""
